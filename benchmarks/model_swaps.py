"""Model swaps: what it costs a running job to bring new versions of a model in while it scores.

A job scores a file of records in each micro-batch with a model of ONNX, gradient-boosted trees. Again and again a new
version comes in under load: it is loaded, validated, some micro-batches in the shadow, and promoted. The report has the
median time of all counted micro-batches, by Spark's own account, and the longest one that had a command of each kind or
came right after it; with `--checkpoint-interval 1s` the same of intervals in real time. Every record must have been
scored once, and every version must have scored some.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier

from benchmarks.batches import last_batch
from benchmarks.command import run_command
from benchmarks.processes import Background
from benchmarks.report import note, print_facts
from benchmarks.running import RunningJob
from benchmarks.swap_job import COLUMNS
from penstock.bindings.parse import parse_binding
from penstock.commands.command_sender import send_command
from penstock.commands.receipt_segments import NewReceipts
from penstock.control.commands import Command, Target
from penstock.streams.graph import COMMANDS

__all__ = ["Sizes", "measure"]

_JOB: Final = Path(__file__).with_name("swap_job.py")
# Different files of records; each is repeated under other names.
_PARTS: Final = 20
_ANSWER_S: Final = 120.0
# Commands of a swap in their order.
_KINDS: Final = ("load-model", "validate-model", "shadow-model", "promote-model")


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    A file of `batch_rows` records comes every `interval_ms`. The first `warm_up` micro-batches do not count. Between
    two commands of a swap there are `apart` micro-batches.
    """

    batch_rows: int = 50_000
    interval_ms: int = 1_000
    checkpoint_interval: str = "0s"
    warm_up: int = 20
    apart: int = 3
    swaps: int = 8
    trees: int = 100
    cores: int = 2

    @property
    def in_real_time(self) -> bool:
        """Whether the job runs in real time."""
        return not self.checkpoint_interval.startswith("0")

    @property
    def files(self) -> int:
        """The number of files of records in micro-batches, more than are read."""
        return 3 * (self.warm_up + (self.swaps + 1) * (len(_KINDS) + 1) * (self.apart + 3))


class _Models:
    """The versions, as files of a folder."""

    def __init__(self, folder: Path, trees: int) -> None:
        folder.mkdir()
        self._folder: Final = folder
        self._trees: Final = trees
        draw = np.random.default_rng(8)
        self._inputs: Final = draw.normal(size=(5000, len(COLUMNS))).astype(np.float32)
        self._labels: Final = (self._inputs[:, 0] * self._inputs[:, 1] + self._inputs[:, 2] > 0).astype(
            np.int64
        )

    def order(self, version: int) -> dict[str, Any]:
        """Train a version; return the payload of the command that loads it."""
        rate = 0.1 + version / 1000
        made = GradientBoostingClassifier(
            n_estimators=self._trees, learning_rate=rate, max_depth=4, random_state=7
        ).fit(self._inputs, self._labels)
        onnx = to_onnx(made, self._inputs[:1], options={"zipmap": False}, target_opset=17)
        content = bytes(onnx.SerializeToString())
        path = self._folder / f"{version}.onnx"
        path.write_bytes(content)
        sample = {
            "inputs": {name: self._inputs[:50, place].tolist() for place, name in enumerate(COLUMNS)},
            "expected": {"score": made.predict_proba(self._inputs[:50])[:, 1].tolist()},
        }
        return {
            "uri": str(path),
            "sha256": hashlib.sha256(content).hexdigest(),
            "format": "onnx",
            "sample": sample,
        }


def _write_parts(folder: Path, sizes: Sizes) -> None:
    """Write the different files of records, and the folder from which the job reads them."""
    (folder / "parts").mkdir()
    (folder / "records").mkdir()
    draw = np.random.default_rng(7)
    for number in range(_PARTS):
        at = number * sizes.batch_rows
        columns: dict[str, Any] = {
            "number": pa.array(range(at, at + sizes.batch_rows), pa.int64()),
            "key": pa.array(draw.integers(0, 1000, sizes.batch_rows), pa.int32()),
        }
        for name in COLUMNS:
            columns[name] = pa.array(draw.normal(size=sizes.batch_rows).astype(np.float32))
        pq.write_table(pa.table(columns), folder / "parts" / f"{number}.parquet")


def _offer(folder: Path, number: int) -> None:
    """Give the job the next file of records."""
    os.link(folder / "parts" / f"{number % _PARTS}.parquet", folder / "records" / f"{number:06d}.parquet")


class _Feed(Background):
    """Offers a file every so often, in real time."""

    def __init__(self, folder: Path, interval_ms: int) -> None:
        super().__init__()
        self._folder: Final = folder
        self._interval_s: Final = interval_ms / 1000
        self.offered = 0

    def run(self) -> None:
        """Offer files until the block ends."""
        due_s = time.monotonic()
        while not self.ended.wait(max(0.0, due_s - time.monotonic())):
            _offer(self._folder, self.offered)
            self.offered += 1
            due_s += self._interval_s


class _Swaps:
    """Sends the commands of swaps, one at a time, and waits until each is applied."""

    def __init__(self, job: RunningJob, sizes: Sizes) -> None:
        self._job: Final = job
        self._sizes: Final = sizes
        self._binding: Final = parse_binding(COMMANDS, f"jsonl:{job.checkpoint / 'commands'}", "control")
        self.kinds: Final[dict[int, list[str]]] = {}

    def bring_in(self, version: int, load: Mapping[str, Any], kinds: tuple[str, ...] = _KINDS) -> None:
        """Load and validate a version, let it score in the shadow, and promote it."""
        for kind in kinds:
            self.send(kind, version, load if kind == "load-model" else {})
            if kind == "load-model":
                self._job.await_true("the examination of a model", lambda: self._is_examined(load["sha256"]))
            self.rest()

    def rest(self) -> None:
        """Let some micro-batches pass."""
        until = last_batch(self._job.checkpoint) + self._sizes.apart
        self._job.await_true("some micro-batches", lambda: last_batch(self._job.checkpoint) >= until)

    def send(self, kind: str, version: int, more: Mapping[str, Any]) -> None:
        """Send a command, wait until it is applied, and note in which micro-batch."""
        payload = {"model": "fraud", "version": str(version), **more}
        name = f"{kind}-{version}"
        body = msgspec.Raw(msgspec.json.encode(payload))
        send_command(Command(id=name, kind=kind, target=Target(step="score"), payload=body), self._binding)
        ends_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < ends_s:
            time.sleep(0.05)
            self._job.check()
            for one in NewReceipts(self._job.checkpoint, from_start=True).read(name):
                if one.status == "APPLIED":
                    self.kinds.setdefault(one.batch, []).append(kind)
                    return
                if one.status == "REJECTED":
                    raise RuntimeError(f"{name} was rejected: {one.reason}")
        raise RuntimeError(f"{name} was not applied within {_ANSWER_S:.0f} s.")

    def _is_examined(self, sha256: str) -> bool:
        found = (self._job.checkpoint / "models" / "findings").glob(f"{sha256}-*.json")
        return any(not path.name.startswith(".") for path in found)


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure. Raises RuntimeError if a record was not scored once, or a version has scored none."""
    models = _Models(work / "models", sizes.trees)
    orders = [models.order(version) for version in range(sizes.swaps + 1)]
    _write_parts(work, sizes)
    more = "" if sizes.in_real_time else "?max_files_per_batch=1"
    bindings = {"records": f"parquet:{work / 'records'}{more}", "scores": f"parquet:{work / 'scores'}"}
    options = ["--cores", str(sizes.cores), "--allow-read", str(work / "models")]
    if sizes.in_real_time:
        options += ["--checkpoint-interval", sizes.checkpoint_interval]
    else:
        options += ["--batch-interval-ms", str(sizes.interval_ms)]
        for number in range(sizes.files):
            _offer(work, number)
    job = RunningJob(work, bindings, options, job=_JOB)
    try:
        with _Feed(work, sizes.interval_ms) if sizes.in_real_time else contextlib.nullcontext():
            job.await_true("its first micro-batches", lambda: last_batch(job.checkpoint) >= 2)
            swaps = _Swaps(job, sizes)
            swaps.bring_in(0, orders[0], ("load-model", "validate-model", "promote-model"))
            first = last_batch(job.checkpoint) + sizes.warm_up
            job.await_true("its warm-up", lambda: last_batch(job.checkpoint) >= first)
            for version, order in enumerate(orders[1:], 1):
                swaps.bring_in(version, order)
                note(f"version {version} serves")
    finally:
        account = job.end()
    _check(work, account["records_in"]["records"], sizes)
    batches = [one for one in account["batches"] if one["batch"] > first and sum(one["rows"])]
    return {**msgspec.to_builtins(sizes), **_result(batches, swaps.kinds)}


def _check(work: Path, records: int, sizes: Sizes) -> None:
    """Raise RuntimeError unless each record has one score, and each version has scored some."""
    found = ds.dataset(work / "scores", format="parquet").to_table()
    numbers, counts = np.unique(found["number"].to_numpy(), return_counts=True)
    rounds = records / (_PARTS * sizes.batch_rows)
    if len(found) != records or counts.max() - counts.min() > 1 or counts.max() > np.ceil(rounds):
        raise RuntimeError(
            f"{records:,} records were read, and {len(found):,} scores written of {len(numbers):,}."
        )
    missing = {str(version) for version in range(sizes.swaps + 1)} - set(found["version"].to_pylist())
    if missing:
        raise RuntimeError(f"Some versions have scored nothing: {sorted(missing)}.")


def _result(batches: list[dict[str, Any]], kinds: Mapping[int, list[str]]) -> dict[str, Any]:
    taken = {one["batch"]: one["ms"]["triggerExecution"] for one in batches}
    median = statistics.median(taken.values())
    with_commands = {kind: list(_near(taken, kinds, kind)) for kind in _KINDS}
    none = [ms for batch, ms in taken.items() if batch not in kinds and batch - 1 not in kinds]
    return {
        "batches": len(taken),
        "median_ms": median,
        "longest_ms": max(taken.values()),
        "ratio": round(max(taken.values()) / median, 2),
        "longest_without_command_ms": max(none),
        "medians_ms": {kind: statistics.median(some) for kind, some in with_commands.items()},
        "longest_of_kind_ms": {kind: max(some) for kind, some in with_commands.items()},
    }


def _near(taken: Mapping[int, float], kinds: Mapping[int, list[str]], kind: str) -> Iterator[float]:
    """Yield the longer of each micro-batch with a command of a kind and the one after it."""
    for batch in (batch for batch, some in kinds.items() if kind in some):
        near = [taken[one] for one in (batch, batch + 1) if one in taken]
        if near:
            yield max(near)


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    what = "an interval" if result["checkpoint_interval"][0] != "0" else "a micro-batch"
    facts = {
        f"{what}, median of {result['batches']}": f"{result['median_ms']:,.0f} ms",
        "the longest": f"{result['longest_ms']:,.0f} ms, {result['ratio']:.2f} of the median",
        "the longest without a command": f"{result['longest_without_command_ms']:,.0f} ms",
    }
    for kind in _KINDS:
        facts[f"with {kind} or after it"] = (
            f"median {result['medians_ms'][kind]:,.0f} ms, longest {result['longest_of_kind_ms'][kind]:,.0f} ms"
        )
    title = (
        f"{result['swaps']} swaps of a model of {result['trees']} trees under {result['batch_rows']:,} records each "
        f"{result['interval_ms']:,} ms, {result['cores']} cores"
    )
    print_facts(title, facts)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
