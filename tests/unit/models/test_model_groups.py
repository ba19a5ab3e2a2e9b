"""Groups: several models score the same records; which one decides, and stable answers in replays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from model_parts import OUTPUT, Linear, Scored, last, weights

import penstock as ps
from penstock.errors import SchemaError
from penstock.models.tallies import VersionTally, add_tallies, scores_of
from penstock.testing import JobHarness

GATE = threading.Event()
GATE.set()
SLOW = 13.0


class Gated(Linear):
    """Waits for the gate if its factor says so, to simulate a slow model."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        if self.factor == SLOW:
            GATE.wait(20)
        return super().predict(columns)


def model(name: str, **more: Any) -> ps.Model:
    return ps.Model(name, inputs="amount DOUBLE", output="score DOUBLE", weights=Gated, **more)


def job_of(decide: Any, deadline: str | None = None, *, by_record: bool = False, **more: Any) -> ps.Job:
    """Return a job whose models a, b and c score together."""

    class Score(ps.ProcessFunction):
        a, b, c = model("a", **more), model("b"), model("c")
        together = ps.ModelGroup(a, b, c, decide=decide, deadline=deadline)

    class ScoreBatches(Score):
        def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
            found = self.together.predict(records, ctx)
            rows = np.arange(len(records))
            return ctx.select(rows, "card", "amount", score=found.values, version=found.versions)

    class ScoreRecords(Score):
        def process_record(self, payment: Any, ctx: ps.Context) -> Iterator[Scored]:
            found = self.together.predict(payment, ctx)
            yield Scored(payment.card, payment.amount, found.value, found.version)

    job = ps.Job("cards", key_groups=4)
    payments = job.data_stream("payments", schema="card STRING, amount DOUBLE")
    function = ScoreRecords() if by_record else ScoreBatches()
    payments.key_by("card").process("score", function, output=OUTPUT).sink_to("scores")
    return job


def serve(run: JobHarness, name: str, content: bytes, version: str = "1") -> None:
    run.load_model("score", name, version, content, format="safetensors")
    for kind in ("validate-model", "promote-model"):
        command = run.send_command(kind, "score", {"model": name, "version": version})
    run.run_batch()
    assert last(run, command).status == "APPLIED", last(run, command).reason


def pay(run: JobHarness, *amounts: float) -> list[tuple[float, str]]:
    run.send("payments", [{"card": f"c{n}", "amount": amount} for n, amount in enumerate(amounts)])
    found = sorted(run.run_batch().output("scores"), key=lambda one: one.card)
    return [(one.score, one.version) for one in found]


def tallies(run: JobHarness) -> dict[str, dict[str, VersionTally]]:
    """Return the number of scores of each version, by model."""
    found: dict[str, dict[str, VersionTally]] = {}
    for outcome in run.outcomes:
        for kind, _, _, _, body in outcome.reports:
            if kind == "scores":
                for name, some in scores_of(body).items():
                    add_tallies(found.setdefault(name, {}), some)
    return found


@pytest.mark.parametrize("by_record", [False, True])
def test_the_best_model_with_a_score_counts(by_record: bool) -> None:
    """If the best one fails, the next is used. If all fail, the record is a dead letter."""
    run = JobHarness(job_of("best", by_record=by_record), parallelism=2)
    assert pay(run, 1.0) == []
    assert "No model of the group 'together' has a usable score" in run.dead_letters()[0].reason
    serve(run, "b", weights(3.0))
    assert pay(run, 2.0) == [(6.0, "b/1")]
    serve(run, "a", weights(2.0, nan_from=50.0))
    assert pay(run, 2.0, 60.0, 3.0) == [(4.0, "a/1"), (180.0, "b/1"), (6.0, "a/1")]
    run.crash()
    found = tallies(run)
    assert (found["a"]["1"].chosen, found["a"]["1"].failures, found["b"]["1"].chosen) == (2, 1, 2)
    assert "c" not in found


@pytest.mark.parametrize("by_record", [False, True])
def test_a_vote_is_the_median_of_those_that_have_a_score(by_record: bool) -> None:
    """The version field lists the voters."""
    run = JobHarness(job_of("vote", by_record=by_record), parallelism=2)
    serve(run, "a", weights(2.0))
    serve(run, "b", weights(9.0, nan_from=50.0))
    serve(run, "c", weights(3.0))
    assert pay(run, 1.0, 60.0) == [(3.0, "a/1 b/1 c/1"), (150.0, "a/1 c/1")]
    run.crash()


def test_votes_on_other_values_are_counted() -> None:
    """The most frequent value wins; of equally frequent ones that of the better model."""
    from penstock.models.bound_group import _most_frequent

    votes = np.array([["x", "y", "x"], ["y", "y", "y"], ["y", "x", "z"]], object)
    everyone = np.ones((3, 3), np.bool_)
    assert _most_frequent(votes, everyone, np.dtype(object)).tolist() == ["y", "y", "x"]
    without = everyone.copy()
    without[0, 2] = False
    assert _most_frequent(votes, without, np.dtype(object)).tolist() == ["y", "y", "y"]


@pytest.mark.parametrize("decide", ["best", "vote", "first"])
def test_a_late_answer_does_not_count_and_a_replay_takes_the_same(decide: str) -> None:
    """Even if the slow model would answer at once in the replay; its latency counts later."""
    run = JobHarness(job_of(decide, "50ms"), parallelism=2)
    serve(run, "a", weights(SLOW))
    serve(run, "b", weights(3.0))
    GATE.clear()
    try:
        begun_s = time.monotonic()
        assert pay(run, 1.0, 2.0, 3.0) == [(3.0, "b/1"), (6.0, "b/1"), (9.0, "b/1")]
        assert time.monotonic() - begun_s < 15
    finally:
        GATE.set()
    run.crash()
    expected = {"best": "a/1", "vote": "a/1 b/1"}.get(decide)
    for _ in range(50):
        time.sleep(0.02)
        versions = {version for _, version in pay(run, 1.0, 2.0, 3.0)}
        run.crash()
        if versions == {expected} or (expected is None and tallies(run)["a"]["1"].calls):
            break
    else:
        pytest.fail(f"the model that is fast again was never taken: {versions}")
    assert decide == "first" or tallies(run)["a"]["1"].late >= 3


def test_when_nobody_answers_in_time_the_next_answer_is_taken() -> None:
    """Every record gets a score, however late."""
    run = JobHarness(job_of("best", "20ms"))
    serve(run, "a", weights(SLOW))
    GATE.clear()
    threading.Timer(0.3, GATE.set).start()
    assert pay(run, 2.0) == [(26.0, "a/1")]


def test_a_group_that_cannot_be_meant_is_refused() -> None:
    """The error has its name and what is wrong."""
    one = model("a")
    other = ps.Model("d", inputs="amount DOUBLE", output="kind STRING", weights=Gated)
    for group, reason in (
        (ps.ModelGroup(one), "at least two different models"),
        (ps.ModelGroup(one, one), "at least two different models"),
        (ps.ModelGroup(one, other), "have different outputs"),
        (ps.ModelGroup(one, model("b"), decide="any"), "decides by 'any'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SchemaError, match=reason):
            group.check()
