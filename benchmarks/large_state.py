"""Large state: gigabytes of text are dumped, saved, rescaled and restored within a memory limit.

The job keeps a text for each key, by default 3 GiB in all, more than Arrow can hold in one array of texts. Next to it
`penstock state dump` and `penstock savepoint` run in their own processes; then the job is rescaled, stopped, and
started from the savepoint with a new checkpoint. Each time the memory of all processes is sampled, without file pages,
which the system reclaims when it needs them. The memory beyond what the job holds must stay below a limit, and the
texts must be unchanged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.batches import last_batch
from benchmarks.command import option, run_command
from benchmarks.large_state_job import text_of
from benchmarks.processes import end_session, python_process, result_of
from benchmarks.report import Column, print_table
from penstock.snapshots.digests import Digest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["Sizes", "main", "measure"]

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
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int(
                    Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1]
                )
    found = _Peak()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += [child for child, parent in parents.items() if parent == pid]
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            values = dict(line.split(":", 1) for line in lines)
            size = int(values["Pss_Anon"].split()[0]) // 1024
            kind = "JVM" if name == "java" else "driver" if pid == root else "workers"
            found.kinds[kind] = found.kinds.get(kind, 0) + size
            found.total += size
    return found


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[_Peak]:
    peak, ended = _Peak(), threading.Event()

    def watch() -> None:
        # Counting the pages of gigabytes takes a while, so frequent sampling would slow down the sampled processes.
        pause_s = _SAMPLE_S
        while not ended.wait(pause_s):
            begun_s = time.thread_time()
            now = _memory(pid)
            pause_s = max(_SAMPLE_S, 10 * (time.thread_time() - begun_s))
            if now.total > peak.total:
                peak.total, peak.kinds = now.total, now.kinds

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def write_input(folder: Path, sizes: Sizes) -> None:
    """Write a file of notes for each micro-batch."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, sizes.keys, sizes.batch_keys)):
        keys = np.arange(start, min(start + sizes.batch_keys, sizes.keys))
        table = pa.table({"key": keys, "length": np.full(len(keys), sizes.length)})
        pq.write_table(table, folder / f"{number:05}.parquet")


def expected_digest(sizes: Sizes, schema: pa.Schema) -> str:
    """Return the digest of the table of texts, computed from the texts themselves."""
    digest = Digest()
    for start in range(0, sizes.keys, sizes.batch_keys):
        keys = range(start, min(start + sizes.batch_keys, sizes.keys))
        texts = [text_of(key, sizes.length) for key in keys]
        columns = [pa.array(keys, schema.field(0).type), pa.array(texts, schema.field(1).type)]
        digest += Digest.of([pa.RecordBatch.from_arrays(columns, schema=schema)])
    return digest.hex()


class _Job:
    """The running job, in its own process."""

    def __init__(self, work: Path, name: str, sizes: Sizes, *options: str) -> None:
        self.checkpoint: Final = work / name
        self._log: Final = work / f"{name}.log"
        notes = f"parquet:{work / 'notes'}?max_files_per_batch=1"
        arguments = [str(_JOB), "--checkpoint", str(self.checkpoint), "--parallelism", str(sizes.tasks)]
        arguments += ["-D", f"notes={notes}", "-D", f"kept=jsonl:{work / name}-kept", *options]
        self.process: Final = python_process("penstock.cli", ["run", *arguments], self._log)

    def await_true(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The job did not get this far:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.2)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=300)
        finally:
            end_session(self.process)


def _run_measured(work: Path, name: str, *arguments: str) -> tuple[float, _Peak, dict[str, Any]]:
    """Run a command in its own process; return its time, its memory and its output."""
    log = work / f"{name}.log"
    begun_s = time.monotonic()
    process = python_process("penstock.cli", [*arguments, "-o", "json"], log)
    try:
        with _watched(process.pid) as peak:
            output, _ = process.communicate()
    finally:
        end_session(process)
    told = result_of(process, output, log)
    print(name, round(time.monotonic() - begun_s, 1), peak, file=sys.stderr, flush=True)
    return time.monotonic() - begun_s, peak, told


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure. Raises RuntimeError if texts are missing, or too much memory was used."""
    write_input(work / "notes", sizes)
    batches = -(-sizes.keys // sizes.batch_keys)
    steps: list[dict[str, Any]] = []
    places = {name: work / name for name in ("dump", "savepoint", "after")}

    def note(step: str, seconds: float, peak: _Peak, held: int) -> None:
        row = {
            "step": step,
            "seconds": round(seconds, 1),
            "peak_mb": peak.total,
            "beyond_mb": peak.total - held,
        }
        steps.append(row | {kind: peak.kinds.get(kind, 0) for kind in ("driver", "JVM", "workers")})
        print(steps[-1], file=sys.stderr, flush=True)

    job = _Job(work, "first", sizes)
    try:
        begun_s = time.monotonic()
        with _watched(job.process.pid) as loading:
            job.await_true(lambda: last_batch(job.checkpoint) >= batches - 1)
        held = _memory(job.process.pid).total
        note("load", time.monotonic() - begun_s, loading, held)
        dump = ("state", "dump", str(job.checkpoint), "--to", str(places["dump"]), "--format", sizes.form)
        note("dump", *_run_measured(work, "dump-of-it", *dump)[:2], 0)
        saved = _run_measured(
            work, "saving", "savepoint", str(job.checkpoint), "--to", str(places["savepoint"])
        )
        note("savepoint", *saved[:2], 0)
        with _watched(job.process.pid) as rescaling:
            wanted = ("--parallelism", str(sizes.after), "--timeout", "1800")
            _, _, answer = _run_measured(work, "rescaling", "rescale", str(job.checkpoint), *wanted)
            add_notes(work / "notes", sizes, batches)
            job.await_true(lambda: last_batch(job.checkpoint) >= 1)
        note("rescale", answer["seconds"], rescaling, held)
    finally:
        job.end()
    restored = _Job(work, "second", sizes, "--from-savepoint", saved[2]["uri"])
    try:
        begun_s = time.monotonic()
        with _watched(restored.process.pid) as restoring:
            restored.await_true(lambda: last_batch(restored.checkpoint) >= 1)
        now = _memory(restored.process.pid).total
        note("restore", time.monotonic() - begun_s, restoring, now)
        after = ("savepoint", str(restored.checkpoint), "--to", str(places["after"]))
        last = _run_measured(work, "saving-again", *after)
    finally:
        restored.end()
    return _checked(sizes, steps, [str(places["dump"]), saved[2]["uri"], last[2]["uri"]])


def add_notes(folder: Path, sizes: Sizes, number: int) -> None:
    """Add two more micro-batches, of existing keys."""
    for more in (number, number + 1):
        table = pa.table({"key": np.arange(100), "length": np.full(100, sizes.length)})
        hidden = folder / f".{more:05}.parquet"
        pq.write_table(table, hidden)
        hidden.rename(folder / f"{more:05}.parquet")


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
        [Column(name.replace("_mb", " MB"), left=name == "step") for name in names],
        [[str(step[name]) for name in names] for step in result["steps"]],
    )


def main() -> None:
    """Run the benchmark."""
    run_command(Sizes, measure, show)


if __name__ == "__main__":
    main()
