"""The jobs of the benchmark of learned state: models per key that learn, and a value per key that is set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as ps

__all__ = ["FEATURES", "WEIGHTS", "learned", "scored", "set_by_hand"]

FEATURES: Final = ("a", "b", "c")
_LEARNER: Final = ps.Covariance(*FEATURES)
WEIGHTS: Final = tuple(_LEARNER.weight_types())

_Emitted = tuple[pa.RecordBatch, npt.NDArray[np.int64]]


@dataclass
class Sample:
    """A record with three numbers."""

    key: int
    a: float
    b: float
    c: float


class Sets(ps.ProcessFunction):
    """A value per key with the same fields."""

    value = ps.ValueState(", ".join(f"`{name}` DOUBLE NOT NULL" for name in WEIGHTS))

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> _Emitted:
        """Read the columns, set new ones for the keys of the records, and emit nothing."""
        held, keys = self.value.columns(), np.unique(ctx.key_indices)
        self.value.put(keys, {name: held[name][keys] + 1.0 for name in WEIGHTS})
        return ctx.select(np.zeros(0, np.int64), *records.schema.names)


class Learns(ps.ProcessFunction):
    """A model per key that learns all records."""

    model = ps.LearnedState(_LEARNER)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> _Emitted:
        """Learn, and emit nothing."""
        self.model.learn(records, ctx.key_indices, scored=False)
        return ctx.select(np.zeros(0, np.int64), *records.schema.names)


class Scores(ps.ProcessFunction):
    """A model per key that scores all records, and learns them."""

    model = ps.LearnedState(_LEARNER)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> _Emitted:
        """Score and learn, and emit nothing."""
        self.model.learn(records, ctx.key_indices)
        return ctx.select(np.zeros(0, np.int64), *records.schema.names)


def _job(function: ps.ProcessFunction) -> ps.Job:
    job = ps.Job("learned")
    samples = job.data_stream("samples", schema=Sample)
    samples.key_by("key").process("step", function, output=Sample).sink_to("out")
    return job


set_by_hand = _job(Sets())
learned = _job(Learns())
scored = _job(Scores())
