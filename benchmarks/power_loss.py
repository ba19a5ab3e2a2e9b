"""Power loss: the cost for a small micro-batch of syncing everything its replay needs before its output is visible.

A count by key reads a small file in each micro-batch. In every other micro-batch only the output itself is synced, as
if there were no power losses; two neighbours are a pair. The report has the times between Spark's commits, the median
difference within a pair, how long the sync took next to the tasks, and how long the output waited for it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import penstock as ps
from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.report import print_table
from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint_sync import CheckpointSync
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.sinks.file_sink import FilesSink

__all__ = ["Sizes", "measure"]


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement; the first `warm_up` micro-batches do not count."""

    batches: int = 400
    warm_up: int = 60
    records: int = option(40, "readings in a micro-batch: 0.2 s of 200 a second")
    parallelism: int = 2
    sinks: str = option("driver", "who makes output visible", choices=("driver", "tasks"))


@dataclass
class _Reading:
    sensor: int
    number: int


@dataclass
class _Seen:
    sensor: int
    count: int


class _Counts(ps.ProcessFunction):
    """Counts the readings of each sensor."""

    count = ps.ValueState(int)

    def process_record(self, reading: _Reading, ctx: ps.Context) -> Iterator[_Seen]:  # noqa: ARG002
        """Count a reading."""
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield _Seen(reading.sensor, count)


def _job() -> ps.Job:
    job = ps.Job("power-loss")
    readings = job.data_stream("readings", schema=_Reading)
    readings.key_by("sensor").process("counts", _Counts()).sink_to("seen")
    return job


@dataclass
class _Clock:
    """The durations of syncs, and of waits for them, in milliseconds by micro-batch."""

    synced: dict[int, float] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)
    batch: int = 0

    @property
    def syncs(self) -> bool:
        """Return whether the micro-batch is one with sync."""
        return self.batch % 2 == 1

    @contextmanager
    def times(self, into: dict[int, float], batch: int) -> Iterator[None]:
        """Add the duration of a block."""
        begun_s = time.perf_counter()
        yield
        into[batch] = into.get(batch, 0.0) + 1000 * (time.perf_counter() - begun_s)


@contextmanager
def _every_other(clock: _Clock, sizes: Sizes) -> Iterator[None]:
    """Skip the sync, and waiting for the disk with small files, in every other micro-batch within the block."""
    run, begin, wait = CheckpointSync._run, CheckpointSync.begin, CheckpointSync.wait  # noqa: SLF001

    def timed_run(sync: CheckpointSync, batch: int) -> None:
        with clock.times(clock.synced, batch):
            run(sync, batch)

    def begins(sync: CheckpointSync, batch: int) -> None:
        clock.batch = batch
        if clock.syncs or batch == 0:
            begin(sync, batch)

    def waits(sync: CheckpointSync, batch: int) -> None:
        if clock.syncs or batch == 0:
            with clock.times(clock.waited, batch):
                wait(sync, batch)

    def writes(path: Path, content: bytes, *, durable: bool = True) -> None:
        write_atomically(path, content, durable=durable and clock.syncs)

    with (
        mock.patch.multiple(CheckpointSync, _run=timed_run, begin=begins, wait=waits),
        mock.patch("penstock.checkpoints.checkpoint.write_atomically", writes),
        mock.patch("penstock.sinks.file_sink.write_atomically", writes),
        mock.patch.object(FilesSink, "commits_in_tasks", sizes.sinks == "tasks"),
    ):
        yield


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Run the job in this process, and compare its micro-batches. Raises RuntimeError if it counted wrong."""
    folder = work / "readings"
    folder.mkdir(parents=True)
    for number in range(sizes.batches):
        lines = (json.dumps({"sensor": sensor, "number": number}) for sensor in range(sizes.records))
        (folder / f"{number:06d}.jsonl").write_text("\n".join(lines))
    settings = RunSettings(
        bindings={"readings": f"jsonl:{folder}?max_files_per_batch=1", "seen": f"jsonl:{work / 'seen'}"},
        checkpoint=str(work / "checkpoint"),
        bounded=True,
        parallelism=sizes.parallelism,
        retained_batches=sizes.batches,
    )
    clock = _Clock()
    with _every_other(clock, sizes):
        summary = JobRunner(_job(), settings, {Path(__file__).name: Path(__file__)}).run()
    if summary.records_out != {"seen": sizes.batches * sizes.records}:
        raise RuntimeError(f"{summary.records_out} records were emitted for {sizes.batches * sizes.records}.")
    took = dict(enumerate(1000 * np.diff(batch_ends(work / "checkpoint")), start=1))
    counted = range(sizes.warm_up // 2 * 2, len(took), 2)
    differences = [took[number + 1] - took[number] for number in counted]
    without = statistics.median(took[number] for number in counted)
    cost = statistics.median(differences)
    return {
        "pairs": len(counted),
        "sinks": sizes.sinks,
        "without_ms": round(without, 2),
        "with_ms": round(statistics.median(took[number + 1] for number in counted), 2),
        "cost_ms": round(cost, 2),
        "cost_share": round(cost / without, 4),
        "sync_ms": round(statistics.median(clock.synced[number + 1] for number in counted), 2),
        "waited_ms": round(statistics.median(clock.waited[number + 1] for number in counted), 2),
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    names = ("without_ms", "with_ms", "cost_ms", "sync_ms", "waited_ms")
    columns = [name.replace("_", " ") for name in names]
    title = f"Micro-batches without and with sync: {result['pairs']} pairs, output made visible by {result['sinks']}"
    print_table(title, columns, [[f"{result[name]:.1f}" for name in names]])
    print(f"The sync costs {100 * result['cost_share']:.1f} % of a micro-batch.")


if __name__ == "__main__":
    run_command(Sizes, measure, show)
