"""Large state: gigabytes of text are dumped, saved, rescaled and restored within a memory limit.

The job keeps a text for each key, by default 3 GiB in all, more than Arrow can hold in one array of texts. Next to it
`penstock state dump` and `penstock savepoint` run in their own processes; then the job is rescaled, stopped, and
started from the savepoint with a new checkpoint. Each time the memory of all processes is sampled, without file pages,
which the system reclaims when it needs them. The memory beyond what the job holds must stay below a limit, and the
texts must be unchanged.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.batches import last_batch
from benchmarks.command import option, run_command
from benchmarks.input_files import write_parts
from benchmarks.large_state_job import text_of
from benchmarks.processes import Background, end_session, family_of, python_process, result_of
from benchmarks.report import note, print_table
from benchmarks.running import RunningJob
from penstock.snapshots.digests import Digest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["Sizes", "measure"]

_JOB: Final = Path(__file__).with_name("large_state_job.py")
_SAMPLE_S: Final = 0.25
_PATIENCE_S: Final = 1800.0
_TEXTS: Final = "keep/text"


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement."""

    keys: int = 400_000
    length: int = option(8192, "characters of each text")
    batch_keys: int = 10_000
    tasks: int = 2
    after: int = option(3, "tasks after the rescaling")
    form: str = option("parquet", "format of the dump", choices=("csv", "jsonl", "parquet", "arrow"))
    max_mb: int = option(2000, "the most memory that may be used beyond what the job holds")


@dataclass
class _Peak:
    """The peak memory of all processes together, in MB by kind of process."""

    total: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


def _memory(root: int) -> _Peak:
    """Return the current memory of a process and its descendants, without file pages; shared pages count once."""
    found = _Peak()
    for process in family_of(root):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process.pid}/comm").read_text().strip()
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
            values = dict(line.split(":", 1) for line in lines)
            size = int(values["Pss_Anon"].split()[0]) // 1024
            kind = "JVM" if name == "java" else "driver" if process.pid == root else "workers"
            found.kinds[kind] = found.kinds.get(kind, 0) + size
            found.total += size
    return found


class _Watch(Background):
    """Samples the memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid: Final = pid
        self.peak = _Peak()

    def run(self) -> None:
        """Sample until the end."""
        # Counting the pages of gigabytes takes a while, so frequent sampling would slow down the sampled processes.
        pause_s = _SAMPLE_S
        while not self.ended.wait(pause_s):
            begun_s = time.thread_time()
            now = _memory(self._pid)
            pause_s = max(_SAMPLE_S, 10 * (time.thread_time() - begun_s))
            self.peak = max(self.peak, now, key=lambda one: one.total)


def write_input(folder: Path, sizes: Sizes) -> None:
    """Write a file of notes for each micro-batch."""
    starts = range(0, sizes.keys, sizes.batch_keys)
    write_parts(folder, (notes(range(at, min(at + sizes.batch_keys, sizes.keys)), sizes) for at in starts))


def notes(keys: range, sizes: Sizes) -> pa.Table:
    """Return a note for each key."""
    return pa.table({"key": np.arange(keys.start, keys.stop), "length": np.full(len(keys), sizes.length)})


def expected_digest(sizes: Sizes, schema: pa.Schema) -> str:
    """Return the digest of the table of texts, computed from the texts themselves."""
    digest = Digest()
    for start in range(0, sizes.keys, sizes.batch_keys):
        keys = range(start, min(start + sizes.batch_keys, sizes.keys))
        texts = [text_of(key, sizes.length) for key in keys]
        columns = [pa.array(keys, schema.field(0).type), pa.array(texts, schema.field(1).type)]
        digest += Digest.of([pa.RecordBatch.from_arrays(columns, schema=schema)])
    return digest.hex()


def _running(work: Path, name: str, sizes: Sizes, *options: str) -> RunningJob:
    folder = work / name
    folder.mkdir()
    bindings = {
        "notes": f"parquet:{work / 'notes'}?max_files_per_batch=1",
        "kept": f"jsonl:{folder / 'kept'}",
    }
    options = ("--parallelism", str(sizes.tasks), "-o", "json", *options)
    return RunningJob(folder, bindings, options, ("penstock.cli", "run"), job=_JOB, patience_s=_PATIENCE_S)


def _run_measured(work: Path, name: str, *arguments: str) -> tuple[float, _Peak, dict[str, Any]]:
    """Run a command in its own process; return its time, its memory and its output."""
    log = work / f"{name}.log"
    begun_s = time.monotonic()
    process = python_process("penstock.cli", [*arguments, "-o", "json"], log)
    try:
        with _Watch(process.pid) as watch:
            output, _ = process.communicate()
    finally:
        end_session(process)
    told = result_of(process, output, log)
    seconds = time.monotonic() - begun_s
    note(f"{name}: {seconds:.1f} s, {watch.peak}")
    return seconds, watch.peak, told


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure. Raises RuntimeError if texts are missing, or too much memory was used."""
    write_input(work / "notes", sizes)
    batches = -(-sizes.keys // sizes.batch_keys)
    steps: list[dict[str, Any]] = []
    places = {name: work / name for name in ("dump", "savepoint", "after")}

    def add_step(step: str, seconds: float, peak: _Peak, held: int) -> None:
        row = {
            "step": step,
            "seconds": round(seconds, 1),
            "peak_mb": peak.total,
            "beyond_mb": peak.total - held,
        }
        steps.append(row | {kind: peak.kinds.get(kind, 0) for kind in ("driver", "JVM", "workers")})
        note(steps[-1])

    job = _running(work, "first", sizes)
    try:
        begun_s = time.monotonic()
        with _Watch(job.pid) as loading:
            job.await_true("all notes", lambda: last_batch(job.checkpoint) >= batches - 1)
        held = _memory(job.pid).total
        add_step("load", time.monotonic() - begun_s, loading.peak, held)
        dump = ("state", "dump", str(job.checkpoint), "--to", str(places["dump"]), "--format", sizes.form)
        add_step("dump", *_run_measured(work, "dump-of-it", *dump)[:2], 0)
        saved = _run_measured(
            work, "saving", "savepoint", str(job.checkpoint), "--to", str(places["savepoint"])
        )
        add_step("savepoint", *saved[:2], 0)
        with _Watch(job.pid) as rescaling:
            wanted = ("--parallelism", str(sizes.after), "--timeout", "1800")
            _, _, answer = _run_measured(work, "rescaling", "rescale", str(job.checkpoint), *wanted)
            add_notes(work / "notes", sizes, batches)
            job.await_true("notes after the rescaling", lambda: last_batch(job.checkpoint) >= 1)
        add_step("rescale", answer["seconds"], rescaling.peak, held)
    finally:
        job.end()
    restored = _running(work, "second", sizes, "--from-savepoint", saved[2]["uri"])
    try:
        begun_s = time.monotonic()
        with _Watch(restored.pid) as restoring:
            restored.await_true("the notes again", lambda: last_batch(restored.checkpoint) >= 1)
        now = _memory(restored.pid).total
        add_step("restore", time.monotonic() - begun_s, restoring.peak, now)
        after = ("savepoint", str(restored.checkpoint), "--to", str(places["after"]))
        last = _run_measured(work, "saving-again", *after)
    finally:
        restored.end()
    return _checked(sizes, steps, [str(places["dump"]), saved[2]["uri"], last[2]["uri"]])


def add_notes(folder: Path, sizes: Sizes, number: int) -> None:
    """Add two more micro-batches, of existing keys."""
    for more in (number, number + 1):
        hidden = folder / f".{more:04}.parquet"
        pq.write_table(notes(range(100), sizes), hidden)
        hidden.rename(folder / f"{more:04}.parquet")


def _checked(sizes: Sizes, steps: list[dict[str, Any]], uris: list[str]) -> dict[str, Any]:
    tables = [read_manifest(open_store(uri)).table(_TEXTS) for uri in uris]
    expected = expected_digest(sizes, tables[0].arrow_schema)
    for uri, table in zip(uris, tables, strict=True):
        if table.digest != expected:
            raise RuntimeError(f"{uri} has other texts than were written: {table.rows} rows.")
    worst = max(step["beyond_mb"] for step in steps if step["step"] != "load")
    if worst > sizes.max_mb:
        raise RuntimeError(f"{worst} MB were used beyond what the job holds: {steps}.")
    text_mb = sizes.keys * sizes.length >> 20
    files = [len(table.files) for table in tables]
    return {"text_mb": text_mb, "keys": sizes.keys, "files": files, "beyond_mb": worst, "steps": steps}


def show(result: dict[str, Any]) -> None:
    """Print the measurements."""
    names = ("step", "seconds", "peak_mb", "beyond_mb", "driver", "JVM", "workers")
    print_table(
        f"{result['text_mb']} MB of text in {result['keys']} keys; number of files: {result['files']}",
        [name.replace("_mb", " MB") for name in names],
        [[str(step[name]) for name in names] for step in result["steps"]],
        left=("step",),
    )


if __name__ == "__main__":
    run_command(Sizes, measure, show)
