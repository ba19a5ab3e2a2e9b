"""Policies: versions are promoted or rolled back automatically, at one cut, with the reason in receipts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from model_parts import CARDS, OUTPUT, Linear, ScoreBatches, bring_in, last, order, pay, scoring_job, weights

import penstock as ps
from penstock.control.receipts import Receipt
from penstock.errors import JobDefinitionError
from penstock.models.model_policy import ModelPolicy, VersionFigures, decide
from penstock.models.score_windows import ScoreWindow, add_scores, window_figures
from penstock.models.tallies import VersionTally
from penstock.testing import JobHarness


def job_with(**policy: Any) -> ps.Job:
    """Return the scoring job with this policy."""

    class ScoreWatched(ScoreBatches):
        model = ps.Model(
            "fraud",
            inputs="amount DOUBLE",
            output="score DOUBLE",
            weights=Linear,
            default=-1.0,
            policy=ps.ModelPolicy(**policy),
        )

    return scoring_job(ScoreWatched())


def started(run: JobHarness) -> str:
    """Let version 1 serve and load version 2; return the id of the promotion."""
    bring_in(run, "1", weights(2.0))
    promotion = order(run, "promote", "1")
    pay(run)
    return promotion


def sent_by_policy(run: JobHarness) -> list[Receipt]:
    return [found for found in run.receipts() if found.issued_by == "policy" and found.status == "APPLIED"]


def test_a_canary_that_fails_is_rolled_back_with_the_reason() -> None:
    """The policy's command acts at one cut; the command that made it the canary is DEGRADED afterwards."""
    run = JobHarness(job_with(max_failures=0.2, roll_back_records=20), parallelism=3)
    started(run)
    bring_in(run, "2", weights(3.0, fails_from=50.0))
    canary = order(run, "canary", "2", share=1.0)
    assert set(pay(run, 60.0).values()) == {"1"}, "version 1 scores where the canary fails"
    assert last(run, canary).status == "APPLIED"
    # Scores in the micro-batch in which it became the canary do not count.
    pay(run, 60.0)
    pay(run)
    (rolled_back,) = sent_by_policy(run)
    assert rolled_back.kind == "roll-back-model"
    assert '"reason":"the share of failures is 1, above 0.2, over 24 records"' in rolled_back.details
    assert [found.status for found in run.receipts(canary)] == [
        "ACCEPTED",
        "VALIDATED",
        "APPLIED",
        "DEGRADED",
    ]
    undone = last(run, canary)
    assert undone.reason == "the share of failures is 1, above 0.2, over 24 records"
    assert (undone.kind, undone.target, undone.batch) == ("canary-model", "score", rolled_back.batch)
    run.crash()
    assert set(pay(run).values()) == {"1"}


def test_a_version_that_serves_is_rolled_back_to_the_one_before() -> None:
    """The cause is drift from the previous version's scores. The first serving version stays."""
    run = JobHarness(job_with(max_drift=1.0, roll_back_records=20), parallelism=2)
    started(run)
    pay(run)
    bring_in(run, "2", weights(40.0))
    promotion = order(run, "promote", "2")
    pay(run)
    assert set(pay(run).values()) == {"2"}
    assert set(pay(run).values()) == {"1"}
    assert "the drift is" in last(run, promotion).reason
    for _ in range(3):
        assert set(pay(run).values()) == {"1"}
    assert len(sent_by_policy(run)) == 1


def test_a_shadow_that_agrees_becomes_the_canary_and_serves() -> None:
    """Each stage needs enough records in the stage before."""
    policy = {"promote_records": 40, "canary_share": 0.5, "min_agreement": 0.9, "roll_back_records": 40}
    run = JobHarness(job_with(**policy), parallelism=2)
    started(run)
    bring_in(run, "2", weights(2.001))
    order(run, "shadow", "2")
    seen = [frozenset(pay(run).values()) for _ in range(10)]
    one, both, two = frozenset("1"), frozenset("12"), frozenset("2")
    assert seen == sorted(seen, key=[one, both, two].index)
    assert set(seen) == {one, both, two}
    assert [found.kind for found in sent_by_policy(run)] == ["canary-model", "promote-model"]
    assert '"reason":"within all bounds over 48 records"' in sent_by_policy(run)[0].details


def test_a_shadow_that_disagrees_is_taken_back() -> None:
    """It is tried again only on request."""
    run = JobHarness(job_with(promote_records=30, min_agreement=0.9, roll_back_records=30), parallelism=2)
    started(run)
    bring_in(run, "2", weights(7.0))
    for _ in range(2):
        shadow = order(run, "shadow", "2")
        for _ in range(5):
            assert set(pay(run).values()) == {"1"}
        assert last(run, shadow).status == "DEGRADED"
        assert last(run, shadow).reason == "the agreement is 0, below 0.9, over 48 records"
    assert len(sent_by_policy(run)) == 2


def test_an_owner_changes_the_policy_of_a_running_job() -> None:
    """A command sets it like any setting, and its window counts from the next micro-batch on."""
    run = JobHarness(job_with(), parallelism=2)
    started(run)
    bring_in(run, "2", weights(3.0, fails_from=50.0))
    order(run, "canary", "2", share=1.0)
    for _ in range(3):
        pay(run, 60.0)
    assert sent_by_policy(run) == []
    wrong = run.send_command("set", "score", {"fraud-policy": {"max_failures": 7}})
    right = run.send_command("set", "score", {"fraud-policy": {"max_failures": 0.1, "roll_back_records": 10}})
    pay(run, 60.0)
    assert (last(run, wrong).status, last(run, right).status) == ("REJECTED", "APPLIED")
    assert "max_failures is a share from 0 to 1" in last(run, wrong).reason
    assert run.settings("score")["fraud-policy"]["max_failures"] == 0.1
    pay(run, 60.0)
    assert [found.kind for found in sent_by_policy(run)] == ["roll-back-model"]


def test_what_is_older_than_the_window_does_not_count() -> None:
    """Failures of an hour ago do not cause a rollback now."""
    run = JobHarness(job_with(max_failures=0.2, roll_back_records=40, window="10m"), parallelism=2)
    started(run)
    bring_in(run, "2", weights(3.0, fails_from=50.0))
    order(run, "canary", "2", share=1.0)
    pay(run)
    pay(run, 60.0)
    run.advance_clock("1h")
    for _ in range(4):
        assert set(pay(run).values()) == {"2"}
    assert sent_by_policy(run) == []


GOOD = VersionFigures(1000, 0, 0, 1.0, 0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("bound", "bad"),
    [
        ({"min_agreement": 0.9}, {"agreement": 0.8}),
        ({"max_failures": 0.1}, {"failures": 200}),
        ({"max_slow": 0.1}, {"slow": 200}),
        ({"max_drift": 0.1}, {"drift": 0.2}),
        ({"max_ks": 0.1}, {"ks": 0.2}),
        ({"max_ms": 5.0}, {"ms": 6.0}),
        ({"max_p99_ms": 5.0}, {"p99_ms": 6.0}),
    ],
)
def test_each_bound_decides(bound: dict[str, float], bad: dict[str, float]) -> None:
    """A shadow beyond a bound is rolled back, one within it promoted, and an unknown one stays."""
    policy = ModelPolicy(promote_records=100, **bound)
    statuses = {"1": "SERVING", "2": "SHADOW"}

    def kinds(found: VersionFigures) -> list[str]:
        return [one.kind for one in decide(policy, statuses, {"2": found}, None)]

    assert kinds(GOOD) == ["promote-model"]
    assert kinds(replace(GOOD, **bad)) == ["roll-back-model"]
    assert kinds(replace(GOOD, records=99)) == []
    unknown = {name: None for name in bad if name not in ("failures", "slow")}
    if unknown:
        assert kinds(replace(GOOD, **unknown)) == []


def test_the_first_version_that_serves_is_never_rolled_back() -> None:
    """Nothing could replace it."""
    bad = VersionFigures(1000, 900, 0, None, None, None, 1.0, 1.0)
    policy = ModelPolicy(max_failures=0.1)
    assert decide(policy, {"1": "SERVING"}, {"1": bad}, None) == []
    assert [one.version for one in decide(policy, {"1": "SERVING"}, {"1": bad}, "0")] == ["1"]


@pytest.mark.parametrize(
    "wrong",
    [{"window": "soon"}, {"roll_back_records": 0}, {"canary_share": 0.0}, {"max_ks": 2.0}, {"max_ms": -1.0}],
)
def test_a_policy_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    """The error names what is wrong."""
    with pytest.raises(ValueError, match=r"window|record|canary_share|max_ks|max_ms"):
        ModelPolicy(**wrong)


def timed_job(watermarks: ps.Watermarks | None = None, **policy: Any) -> ps.Job:
    """Return the same job with payments that have an event time."""

    class ScoreByTime(ScoreBatches):
        model = ps.Model(
            "fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear, default=-1.0,
            policy=ps.ModelPolicy(**policy),
        )  # fmt: skip

    job = ps.Job("cards", key_groups=8)
    payments = job.data_stream(
        "payments",
        schema="card STRING, amount DOUBLE, at LONG",
        event_time="at",
        watermarks=watermarks,
    )
    payments.key_by("card").process("score", ScoreByTime(), output=OUTPUT).sink_to("scores")
    return job


@pytest.mark.parametrize(("apart_s", "is_rolled_back"), [(5, True), (30, False)])
def test_a_window_may_be_one_of_event_time(apart_s: int, is_rolled_back: bool) -> None:
    """Failures count together while the watermark advances by less than the window."""
    policy = {"time": "event", "window": "20s", "max_failures": 0.2, "roll_back_records": 40}
    run = JobHarness(timed_job(ps.Watermarks.bounded("1s"), **policy), parallelism=2)
    bring_in(run, "1", weights(2.0))
    order(run, "promote", "1")
    bring_in(run, "2", weights(3.0, fails_from=50.0))
    order(run, "canary", "2", share=1.0)
    for number in range(5):
        at = 1_000_000 + number * apart_s * 1000
        run.send("payments", [{"card": card, "amount": 60.0, "at": at} for card in CARDS])
        run.run_batch()
        run.crash()
        run.advance_clock("1h")
    assert [found.kind for found in sent_by_policy(run)] == ["roll-back-model"] * is_rolled_back


@pytest.mark.parametrize("make", [job_with, timed_job], ids=["without event time", "with event time"])
def test_a_window_of_event_time_needs_watermarks(make: Callable[..., ps.Job]) -> None:
    """Otherwise it would never advance, and the policy never decide: refused in the job and in a command."""
    with pytest.raises(JobDefinitionError, match="'payments' has no watermarks"):
        make(time="event")
    run = JobHarness(make(max_failures=0.2))
    command = run.send_command("set", "score", {"fraud-policy": {"time": "event"}})
    run.run_batch()
    assert last(run, command).status == "REJECTED"
    assert last(run, command).reason == (
        "the step 'score' has no watermarks, so the policy 'fraud-policy' would never decide by event time; "
        'set "time": "processing", or declare watermarks on its data stream (watermarks=)'
    )


def test_a_policy_looks_at_event_time_or_the_clock() -> None:
    """Other kinds of time are refused."""
    with pytest.raises(ValueError, match="'processing' or 'event', not 'wall'"):
        ModelPolicy(time="wall")


def test_scores_at_an_unknown_time_do_not_count() -> None:
    """An example is a score before the first watermark; a change of clock or length starts anew."""
    window, versions = ScoreWindow(), {"1": {"status": "SERVING", "command": "a"}}
    tally = {"1": VersionTally(records=10)}
    add_scores(window, versions, {}, None, ("event", 10_000))
    add_scores(window, versions, tally, 5_000, ("event", 10_000))
    add_scores(window, versions, {}, None, ("event", 10_000))
    assert window_figures(window, versions, {})["1"].records == 10
    add_scores(window, versions, tally, 14_000, ("event", 10_000))
    assert window_figures(window, versions, {})["1"].records == 20
    add_scores(window, versions, tally, 15_000, ("event", 10_000))
    assert window_figures(window, versions, {})["1"].records == 20
    add_scores(window, versions, tally, 15_000, ("processing", 10_000))
    assert window_figures(window, versions, {})["1"].records == 10
