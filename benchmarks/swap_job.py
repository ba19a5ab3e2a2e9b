"""The job of the benchmark of model swaps: scores records with a model whose versions come in while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps

__all__ = ["COLUMNS", "job"]

COLUMNS = tuple(f"f{number}" for number in range(6))
_INPUTS = ", ".join(f"{name} FLOAT" for name in COLUMNS)


class Score(ps.ProcessFunction):
    """Scores each record, and says which version did."""

    model = ps.Model("fraud", inputs=_INPUTS, output="score DOUBLE", default=0.0)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        """Score a batch."""
        scores = self.model.predict(records, ctx)
        rows = np.arange(len(records))
        return ctx.select(rows, "number", score=scores.values, version=scores.versions)


job = ps.Job("swaps", key_groups=16)
records = job.data_stream("records", schema=f"number LONG, key INT, {_INPUTS}")
scored = records.key_by("key").process("score", Score(), output="number LONG, score DOUBLE, version STRING")
scored.sink_to("scores")
