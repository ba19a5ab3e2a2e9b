"""Rates: a job's throughput per second over its last minute."""

from __future__ import annotations

import datetime as dt

import pytest
from small_metrics import metrics_of_batch

from penstock.metrics.batch_metrics import BatchMetrics, StepBatchMetrics, Totals
from penstock.metrics.rates import Rates, rates

BEGUN = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return BEGUN + dt.timedelta(seconds=seconds)


def run(job_id: str, starts: list[float], records: int = 100, busy_s: float = 0.5) -> list[BatchMetrics]:
    """Return the metrics of a run with a micro-batch at each time."""
    return [
        metrics_of_batch(
            number,
            at(start),
            busy_s,
            job_id=job_id,
            records_in={"visits": records},
            records_out={"out": 1},
            dead_letters=2,
            commands={"applied": 1, "rejected": 1},
            steps={"count": StepBatchMetrics(records=records)},
            totals=Totals(
                batches=number + 1,
                busy_seconds=(number + 1) * busy_s,
                records_in={"visits": (number + 1) * records},
                records_out={"out": number + 1},
                step_records={"count": (number + 1) * records},
                dead_letters=2 * (number + 1),
                commands={"applied": number + 1, "rejected": number + 1, "degraded": 0},
            ),
        )
        for number, start in enumerate(starts)
    ]


def test_over_a_whole_window() -> None:
    """The job has run for longer: one micro-batch of half a second each second."""
    found = rates(run("a", list(range(300))), at(300))
    assert (found.seconds, found.batches, found.utilisation, found.mean_busy_s) == (60.0, 1.0, 0.5, 0.5)
    assert (found.records_in, found.records_out, found.step_records) == (
        {"visits": 100.0},
        {"out": 1.0},
        {"count": 100.0},
    )
    assert (found.dead_letters, found.commands) == (2.0, 2.0)


def test_of_a_job_that_has_just_begun() -> None:
    """The rate is over the time since its first micro-batch."""
    found = rates(run("a", [0, 5, 8]), at(10))
    assert (found.seconds, found.batches, found.records_in) == (10.0, 0.3, {"visits": 30.0})


def test_of_a_job_that_has_been_idle() -> None:
    """Older micro-batches do not count; without any everything is 0."""
    assert rates(run("a", [0, 1, 50]), at(100)).records_in == {"visits": pytest.approx(100 / 60, abs=0.001)}
    assert rates(run("a", [0, 1]), at(100)) == Rates(seconds=60.0)
    assert rates([], at(0)) == Rates(seconds=60.0)


def test_over_a_restart() -> None:
    """Both runs count, though totals restart."""
    found = run("a", [0, 1, 2]) + run("b", [10, 11])
    assert rates(found, at(20)).records_in == {"visits": 25.0}
    assert rates(found, at(20)).batches == 0.25


def test_what_was_not_written_by_itself_counts() -> None:
    """An idle job with timers has empty micro-batches, most of which are only in the totals."""
    found = run("a", [float(number) for number in range(200)], records=0, busy_s=0.1)
    thinned = found[::5]
    assert rates(thinned, at(199)).batches == pytest.approx(rates(found, at(199)).batches, abs=0.1)
    assert rates(thinned, at(199)).utilisation == pytest.approx(0.1, abs=0.01)
