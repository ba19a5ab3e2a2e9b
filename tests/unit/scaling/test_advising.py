"""Advice: which settings simulated jobs want, and why."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from simulated_job import Nature, SimulatedJob

from penstock.metrics.batch_metrics import Lag
from penstock.scaling.advice import Advice, Recommendation, advise
from penstock.scaling.capacity import Bounds, highest_rate, measure_capacity
from penstock.scaling.policy import ScalingPolicy

POLICY = ScalingPolicy()


def waves(rate: float, height: float = 0.3) -> Callable[[float], float]:
    """A load that goes up and down once in two minutes."""
    return lambda seconds: rate * (1 + height * math.sin(seconds * math.tau / 120))


def advice(job: SimulatedJob, window_s: float = 240) -> Advice:
    return advise(POLICY, job.metrics, job.bounds, window_s)


def of(found: Advice, setting: str) -> Recommendation:
    return next(one for one in found.recommendations if one.setting == setting)


@examples(20)
@given(
    st.floats(100, 10_000),
    st.floats(0.1, 3),
    st.floats(0, 0.15),
    st.floats(0.1, 0.6),
    st.integers(1, 8),
    st.integers(0, 100),
)
def test_costs_are_taken_apart(
    task_rate: float, fixed_s: float, noise: float, share: float, tasks: int, seed: int
) -> None:
    """Whatever a task can do and an empty micro-batch costs: both are found, and what arrives."""
    nature = Nature(task_rate=task_rate, fixed_s=fixed_s, noise=noise, interval_s=5, seed=seed)
    rate = share * task_rate * tasks
    job = SimulatedJob(nature, waves(rate), tasks=tasks).run(600)
    found = measure_capacity(job.metrics, job.bounds, 240)
    assert found is not None
    assert found.cost.is_determined
    assert found.arriving == pytest.approx(rate, rel=0.1)
    error = 4 * found.cost.error_s * task_rate * tasks + 0.02
    assert found.cost.tasks_s * task_rate * tasks == pytest.approx(1, abs=error)
    assert found.cost.fixed_s == pytest.approx(fixed_s, abs=error * share * 5 + 0.02)


@pytest.mark.parametrize("tells", ["records", "seconds"])
def test_what_arrives_is_more_than_what_is_read(tells: str) -> None:
    """When lag grows, in whatever unit the source tells it."""
    nature = Nature(interval_s=2, tells=tells, max_records=2000, fixed_s=0.5)
    found = measure_capacity(SimulatedJob(nature, waves(1600, 0)).run(300).metrics, Bounds(128), 120)
    assert found is not None
    assert found.processed == pytest.approx(800, rel=0.05)
    assert found.arriving == pytest.approx(1600, rel=0.05)
    assert found.lag_s == pytest.approx(150, rel=0.1)


def test_what_waits_between_two_micro_batches_is_no_rise_of_the_rate() -> None:
    """A young job reads files that came up to a micro-batch ago, at one moment more of them than at another."""
    found = [
        msgspec.structs.replace(metrics, lag={"visits": Lag(files=number % 2, seconds=0.9 * (number % 2))})
        for number, metrics in enumerate(SimulatedJob(Nature(interval_s=1), lambda _: 30.0).run(6).metrics)
    ]
    for last in range(5, len(found) + 1):
        state = measure_capacity(found[:last], Bounds(128), 2)
        assert state is not None
        assert state.arriving == pytest.approx(30, rel=0.1)


def test_the_highest_rate_is_that_of_the_highest_window() -> None:
    job = SimulatedJob(Nature(interval_s=2), lambda seconds: 900 if 300 < seconds < 400 else 100).run(600)
    assert highest_rate(job.metrics, 60, 400) == pytest.approx(900, rel=0.1)
    assert highest_rate(job.metrics, 60, 120) == pytest.approx(100, rel=0.1)
    assert highest_rate(job.metrics, 60, 700) is None


def test_a_job_that_fits_is_left_alone() -> None:
    found = advice(SimulatedJob(Nature(interval_s=2, cores=2), waves(1000), tasks=2).run(600))
    assert (found.confidence, found.doubts) == ("high", [])
    parallelism = of(found, "parallelism")
    assert (parallelism.now, parallelism.wanted, parallelism.cost) == (2, 2, "")
    assert of(found, "cores").wanted == 2
    interval = of(found, "batch-interval-ms")
    assert interval.now == interval.wanted


def test_too_much_load_wants_more_tasks() -> None:
    """As many as bring the load to the target, with the metrics that say so, and with cores for them."""
    job = SimulatedJob(Nature(interval_s=5, cores=8, max_records=9000), waves(2600), tasks=2).run(600)
    found = advice(job)
    parallelism = of(found, "parallelism")
    assert parallelism.wanted is not None
    assert 4 <= parallelism.wanted <= 8
    assert parallelism.measurements["task_capacity_per_s"] == pytest.approx(1000, rel=0.05)
    assert parallelism.measurements["arriving_per_s"] == pytest.approx(2600, rel=0.1)
    assert parallelism.measurements["load_then"] <= POLICY.target_utilisation
    assert "not measured here yet" in parallelism.cost


def test_too_little_load_wants_fewer_tasks() -> None:
    parallelism = of(advice(SimulatedJob(Nature(interval_s=5), waves(500), tasks=8).run(600)), "parallelism")
    assert (parallelism.wanted, "1 task would suffice" in parallelism.why) == (1, True)


def test_cores_bound_the_tasks() -> None:
    """More of them are wanted, as many as there are tasks needed."""
    job = SimulatedJob(Nature(interval_s=2, cores=2, max_records=4000), waves(3000), tasks=2).run(600)
    found = advice(job)
    parallelism, cores = of(found, "parallelism"), of(found, "cores")
    assert parallelism.wanted == 2
    assert "More tasks do not help on 2 cores; more cores do." in parallelism.why
    assert cores.wanted is not None
    assert cores.wanted >= 5


def test_key_groups_bound_the_tasks() -> None:
    job = SimulatedJob(Nature(interval_s=2, key_groups=2, max_records=4000), waves(3000), tasks=2).run(600)
    found = of(advice(job), "parallelism")
    assert found.wanted == 2
    assert "there are 2 key groups" in found.why


def test_more_tasks_do_not_help_where_a_micro_batch_itself_is_dear() -> None:
    """Then the interval is what helps, or less to do in each micro-batch."""
    found = of(advice(SimulatedJob(Nature(fixed_s=9), waves(100)).run(900), 600), "parallelism")
    assert found.wanted == 1
    assert "More tasks do not help: a micro-batch costs 9.0" in found.why


def test_more_tasks_do_not_help_where_the_driver_is_slow() -> None:
    nature = Nature(task_rate=5000, driver_s=0.001, interval_s=2)
    found = of(advice(SimulatedJob(nature, waves(800, 0.1), tasks=2).run(600)), "parallelism")
    assert found.wanted == 2
    assert "the driver alone takes 1000 us for each record" in found.why


def test_a_hot_key_group_is_told() -> None:
    """It is only suspected at one parallelism, and proven when more tasks have left its part as it was."""
    nature = Nature(hot_share=0.9, interval_s=5, max_records=8000)
    job = SimulatedJob(nature, waves(1300), tasks=2).run(400)
    suspected = advice(job)
    assert any("has 1.8 times the mean. If that is one key" in doubt for doubt in suspected.doubts)
    job.tasks = 4
    proven = advice(job.run(900))
    parallelism = of(proven, "parallelism")
    assert parallelism.wanted == 4
    assert "one key group has 90% of the records of count" in parallelism.why
    assert not any("If that is one key" in doubt for doubt in proven.doubts)


def test_small_micro_batches_want_an_interval() -> None:
    """A job that begins the next as soon as one has ended is always at work, with little to show for it."""
    interval = of(advice(SimulatedJob(Nature(fixed_s=0.5), waves(200)).run(600)), "batch-interval-ms")
    assert interval.now == 0
    assert interval.wanted is not None
    # 0.5 s of each interval, and 200 of 1,000 records per second: 0.5 s / (0.7 - 0.2).
    assert interval.measurements["period_s"] < 0.8
    assert interval.wanted == pytest.approx(1000, abs=110)
    assert f"--batch-interval {interval.wanted}" in interval.cost


def test_no_interval_helps_where_records_take_all_the_time() -> None:
    job = SimulatedJob(Nature(interval_s=2, cores=1), waves(900, 0.1)).run(600)
    interval = of(advice(job), "batch-interval-ms")
    assert interval.wanted == interval.now
    assert "which no interval changes" in interval.why


def test_a_rescale_costs_what_the_last_one_did() -> None:
    job = SimulatedJob(Nature(interval_s=5), waves(500)).run(300)
    job.tasks, job.now = 8, job.now + 20
    found = of(advice(job.run(900)), "parallelism")
    assert (found.wanted, found.cost[:30]) == (1, "A rescale: the last one took 2")


def test_little_is_said_on_few_metrics() -> None:
    """Nothing on none, and doubts on few or on such as are all alike."""
    assert advise(POLICY, [], Bounds(128), 60).confidence == "none"
    job = SimulatedJob(Nature(interval_s=5), waves(500, 0))
    for _ in range(3):
        job.batch()
    assert advice(job).recommendations == []
    alike = advice(job.run(200))
    assert alike.confidence != "high"
    assert any("too similar to determine" in doubt for doubt in alike.doubts)


def test_a_load_that_changes_is_a_doubt() -> None:
    found = advice(SimulatedJob(Nature(interval_s=5), lambda seconds: 100 + seconds).run(600), 300)
    assert any("The rate of arrival has changed by" in doubt for doubt in found.doubts)
