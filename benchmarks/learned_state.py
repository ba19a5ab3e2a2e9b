"""Learned state: models per key that learn, beside a value per key of the same size that is set. Without Spark.

Both steps get the same micro-batches, in the rows and the state store of a job: one of all keys, and then some of
random keys. The time is that of the steps, with what they read and store.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as ps
from benchmarks.command import option, run_command
from benchmarks.report import print_table
from penstock.testing.batch_runner import BatchRunner

__all__ = ["Sizes", "measure", "show"]

_FEATURES: Final = ("a", "b", "c")
_LEARNER: Final = ps.Covariance(*_FEATURES)
_WEIGHTS: Final = tuple(_LEARNER.weight_types())


@dataclass
class Sample:
    """A record with three numbers."""

    key: int
    a: float
    b: float
    c: float


class Learns(ps.ProcessFunction):
    """A model per key."""

    model = ps.LearnedState(_LEARNER)

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Learn all records, and emit none."""
        self.model.learn(records, ctx.key_indices)
        return ctx.select(np.zeros(0, np.int64), *records.schema.names)


class Sets(ps.ProcessFunction):
    """A value per key with the same fields."""

    value = ps.ValueState(", ".join(f"`{name}` DOUBLE NOT NULL" for name in _WEIGHTS))

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Read the columns, set new ones for the keys of the records, and emit nothing."""
        held, slots = self.value.columns(), np.unique(ctx.key_indices)
        self.value.put(slots, {name: held[name][slots] + 1.0 for name in _WEIGHTS})
        return ctx.select(np.zeros(0, np.int64), *records.schema.names)


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    keys: int = option(1_000_000, "keys that have a model")
    batch_rows: int = 200_000
    batches: int = 7
    key_groups: int = 128


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:  # noqa: ARG001  # as other benchmarks
    """Measure both steps in turns."""
    runners = {}
    for name, function in (("value that is set", Sets()), ("model that learns", Learns())):
        job = ps.Job("learned", key_groups=sizes.key_groups)
        samples = job.data_stream("samples", schema=Sample)
        samples.key_by("key").process("step", function, output=Sample).sink_to("out")
        runners[name] = BatchRunner(job)
    random = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(sizes.batches + 1):
        keys = np.arange(sizes.keys) if number == 0 else random.integers(0, sizes.keys, sizes.batch_rows)
        values = random.normal(size=(len(keys), len(_FEATURES)))
        records = [Sample(key, *row) for key, row in zip(keys.tolist(), values.tolist(), strict=True)]
        for name, runner in runners.items():
            begun_s = time.perf_counter()
            runner.run({"samples": [("0", records)]})
            seconds[name].append(time.perf_counter() - begun_s)
    rows = [
        {
            "state": name,
            "batch_ms": round(1000 * statistics.median(seconds[name][1:])),
            "bytes_per_key": round(
                sum(len(entry) for stored in runner.states.values() for entry in stored.values()) / sizes.keys
            ),
        }
        for name, runner in runners.items()
    ]
    return {"keys": sizes.keys, "batch_rows": sizes.batch_rows, "weights": len(_WEIGHTS), "runs": rows}


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    first = result["runs"][0]
    rows = [
        [
            row["state"],
            f"{row['batch_ms']:,}",
            f"{row['batch_ms'] / first['batch_ms']:.2f}x",
            f"{row['bytes_per_key']:,}",
        ]
        for row in result["runs"]
    ]
    title = f"{result['keys']:,} keys with {result['weights']} numbers, {result['batch_rows']:,} records a micro-batch"
    print_table(title, ("state", "batch ms", "ratio", "stored bytes per key"), rows, left=("state",))


if __name__ == "__main__":
    run_command(Sizes, measure, show)
