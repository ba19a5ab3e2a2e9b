"""A job that scores payments with a model whose versions come in while it runs."""

from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps

COLUMNS = "amount DOUBLE, hour DOUBLE, distance DOUBLE, new_device DOUBLE"


class ScorePayments(ps.ProcessFunction):
    """Scores each payment, and says which version did."""

    model = ps.Model(
        "fraud",
        inputs=COLUMNS,
        output="score DOUBLE",
        budget="200ms",
        default=0.0,
        policy=ps.ModelPolicy(roll_back_records=500, max_ks=0.5),
    )

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        scores = self.model.predict(records, ctx)
        rows = np.arange(len(records))
        return ctx.select(rows, "payment", "card", score=scores.values, version=scores.versions)


job = ps.Job("fraud", key_groups=16)
payments = job.data_stream("payments", schema=f"payment INT, card STRING, {COLUMNS}")
scored = payments.key_by("card").process(
    "score", ScorePayments(), output="payment INT, card STRING, score DOUBLE, version STRING"
)
scored.sink_to("scores")
