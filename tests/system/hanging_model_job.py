"""A job that scores payments with a model; one version hangs on certain amounts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import penstock as ps

HANGS = 666.0
HUNG_AMOUNT = 13.0


class Linear:
    """Multiplies the amount; with the factor HANGS it never returns for HUNG_AMOUNT, with -HANGS it fills
    memory.
    """

    def __init__(self, weights: dict[str, Any], metadata: dict[str, str]) -> None:
        self.factor = float(weights["factor"][0])
        self.taken: list[Any] = []

    def predict(self, columns: dict[str, Any]) -> Any:
        if abs(self.factor) == HANGS and (columns["amount"] == HUNG_AMOUNT).any():
            while self.factor < 0 and len(self.taken) < 60:
                self.taken.append(np.ones(1 << 20))
                time.sleep(0.01)
            time.sleep(600)
        return columns["amount"] * self.factor


class Score(ps.ProcessFunction):
    model = ps.Model(
        "fraud",
        inputs="amount DOUBLE",
        output="score DOUBLE",
        weights=Linear,
        timeout="3s",
        memory_mb=200,
    )

    def process_batch(self, records: Any, ctx: ps.BatchContext) -> Any:
        scores = self.model.predict(records, ctx)
        rows = np.arange(len(records))
        return ctx.select(rows, "number", score=scores.values, version=scores.versions)


job = ps.Job("payments", key_groups=8)
payments = job.data_stream("payments", schema="number INT, card INT, amount DOUBLE")
output = "number INT, score DOUBLE, version STRING"
payments.key_by("card").process("score", Score(), output=output).sink_to("scores")
