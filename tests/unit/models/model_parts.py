"""Parts of model tests: weights for a small class, a job that scores payments, and commands on versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save

import penstock as ps
from penstock.control.receipts import Receipt
from penstock.testing import JobHarness

CARDS = [f"card-{number}" for number in range(24)]


class Linear:
    """Multiplies the amount, and misbehaves as its weights say."""

    def __init__(self, weights: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self.factor = float(weights["factor"][0])
        self.fails_from = float(weights["fails_from"][0]) if "fails_from" in weights else float("inf")
        self.nan_from = float(weights["nan_from"][0]) if "nan_from" in weights else float("inf")

    def predict(self, columns: Mapping[str, Any]) -> Any:
        amounts = columns["amount"]
        if (amounts >= self.fails_from).any():
            raise ArithmeticError("the amount is too large")
        return np.where(amounts >= self.nan_from, np.nan, amounts * self.factor)


def weights(factor: float, **more: float) -> bytes:
    """Return the file of a Linear."""
    return save({"factor": np.array([factor]), **{name: np.array([value]) for name, value in more.items()}})


@dataclass
class Scored:
    """A payment with its score."""

    card: str
    amount: float
    score: float
    version: str


class ScoreBatches(ps.ProcessFunction):
    """Scores payments in batches."""

    model = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear, default=-1.0)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        scores = self.model.predict(records, ctx)
        return ctx.select(
            np.arange(len(records)), "card", "amount", score=scores.values, version=scores.versions
        )


class ScoreRecords(ps.ProcessFunction):
    """Scores payments one by one."""

    model = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear, default=-1.0)

    def process_record(self, payment: Any, ctx: ps.Context) -> Iterator[Scored]:
        score = self.model.predict(payment, ctx)
        yield Scored(payment.card, payment.amount, score.value, score.version)


OUTPUT = "card STRING, amount DOUBLE, score DOUBLE, version STRING"


def scoring_job(function: ps.ProcessFunction | None = None, key_groups: int = 8) -> ps.Job:
    """A job with the step `score`."""
    job = ps.Job("cards", key_groups=key_groups)
    payments = job.data_stream("payments", schema="card STRING, amount DOUBLE")
    scored = payments.key_by("card").process("score", function or ScoreBatches(), output=OUTPUT)
    scored.sink_to("scores")
    return job


def pay(run: JobHarness, amount: float = 1.0, cards: list[str] = CARDS) -> dict[str, Any]:
    """Run a micro-batch with one payment of each card; return the version by card."""
    run.send("payments", [{"card": card, "amount": amount} for card in cards])
    return {record.card: record.version for record in run.run_batch().output("scores")}


def order(run: JobHarness, kind: str, version: str | None = None, **more: Any) -> str:
    """Send a command on a version."""
    payload = {"model": "fraud", **more} | ({} if version is None else {"version": version})
    return run.send_command(f"{kind}-model", "score", payload)


def bring_in(run: JobHarness, version: str, content: bytes, form: str = "safetensors", **more: Any) -> str:
    """Load and validate a version; return the id of the validation."""
    run.load_model("score", "fraud", version, content, format=form, **more)
    return order(run, "validate", version)


def last(run: JobHarness, command: str) -> Receipt:
    """Return the last receipt of a command."""
    return run.receipts(command)[-1]
