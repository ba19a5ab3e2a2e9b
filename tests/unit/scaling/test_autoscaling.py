"""Autoscaling: what a policy decides for simulated jobs, whose load rises and falls, and who are noisy and slow."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from property_examples import examples
from simulated_job import BEGUN, Nature, SimulatedJob, at

from penstock.scaling.autoscale_decisions import Rescale, decide, rescales_of
from penstock.scaling.capacity import Bounds
from penstock.scaling.policy import ScalingPolicy

POLICY = ScalingPolicy()
UP_S, TOP_S, DOWN_S, END_S = 600.0, 2400.0, 2400.0, 5400.0

natures = st.builds(
    Nature,
    task_rate=st.floats(200, 5000),
    fixed_s=st.floats(0.5, 1.5),
    noise=st.floats(0, 0.2),
    interval_s=st.sampled_from([2.0, 5.0]),
    downtime_s=st.floats(1, 20),
    tells=st.sampled_from(["records", "seconds"]),
    seed=st.integers(0, 1000),
)


# At work nearly all the time, so that micro-batches are of one size, and what a record costs drowns in the noise.
NOISY = Nature(
    task_rate=904.0, fixed_s=0.75, noise=0.125, interval_s=2.0, downtime_s=1.0, tells="records", seed=48
)


def fourfold(base: float, ramp_s: float) -> Callable[[float], float]:
    """A load that rises fourfold and falls again, each within a time."""

    def load(seconds: float) -> float:
        up = min(1.0, max(0.0, (seconds - UP_S) / ramp_s))
        down = min(1.0, max(0.0, (seconds - DOWN_S) / ramp_s))
        return base * (1 + 3 * up - 3 * down)

    return load


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def changes(job: SimulatedJob) -> list[tuple[int, int]]:
    return [(rescale.before, rescale.after) for rescale in job.rescales]


@examples(7)
@given(natures, st.floats(0.25, 0.5), st.sampled_from([1.0, 120.0, 600.0]))
@example(NOISY, 0.46875, 1.0)
def test_a_load_that_rises_fourfold_and_falls_again(nature: Nature, share: float, ramp_s: float) -> None:
    """Lag comes back to its level at the top and at the end without a hand, with at most four rescales."""
    job = SimulatedJob(nature, fourfold(share * nature.task_rate, ramp_s))
    job.run(UP_S, POLICY)
    level_s = 10 + 2 * nature.interval_s
    assert changes(job) == []
    job.run(DOWN_S, POLICY)
    assert job.waits_s() < level_s
    assert job.tasks >= 4 * share
    job.run(END_S, POLICY)
    assert job.waits_s() < level_s
    assert len(job.rescales) <= 4
    # Where most of a micro-batch is what it costs whatever the tasks, none of them are seen to be idle.
    if nature.fixed_s <= nature.interval_s / 2:
        assert job.tasks < max(2, max(rescale.after for rescale in job.rescales))


@examples(8)
@given(natures, st.floats(0.1, 6), st.integers(1, 8))
def test_a_steady_load_never_makes_a_job_swing(nature: Nature, share: float, tasks: int) -> None:
    """It gets more tasks until they are enough, or fewer, and never both; then nothing any more."""
    nature = dataclasses.replace(nature, max_records=int(15 * nature.task_rate * tasks))
    # Otherwise no number of tasks takes what arrives.
    assume(1.5 * share * nature.task_rate * nature.interval_s < nature.max_records)
    job = SimulatedJob(nature, steady(share * nature.task_rate), tasks=tasks)
    job.run(4800, msgspec.structs.replace(POLICY, max_rescales_per_hour=100))
    ups = [after > before for before, after in changes(job)]
    assert ups in ([True] * len(ups), [False] * len(ups))
    assert len(ups) <= 4
    # A load at the very edge is carried over it by noise at some time, and then once.
    assert sum(rescale.at >= at(2400) for rescale in job.rescales) <= 1
    assert job.waits_s() < 20


def test_tasks_do_not_heal_what_micro_batches_may_not_take() -> None:
    """A bound of each micro-batch and an interval between them let no more through, however many tasks there are."""
    nature = Nature(task_rate=200.0, fixed_s=1.0, interval_s=5.0, downtime_s=1.0, max_records=3000)
    job = SimulatedJob(nature, steady(600.0), tasks=1)
    job.run(4800, msgspec.structs.replace(POLICY, max_rescales_per_hour=100))
    assert 4 <= job.tasks <= 8
    assert "not the number of tasks" in job.decisions[-1][1].reason


@examples(6)
@given(
    natures,
    st.lists(st.floats(0.05, 12), min_size=4, max_size=4),
    st.integers(1, 4),
    st.integers(4, 9),
    st.sampled_from([60.0, 300.0]),
    st.integers(1, 6),
)
def test_no_load_leads_beyond_the_limits(
    nature: Nature, shares: list[float], least: int, most: int, cool_down_s: float, an_hour: int
) -> None:
    """Not outside of the least and the most, not within the cool-down, not more often an hour than allowed."""
    policy = msgspec.structs.replace(
        POLICY,
        min_tasks=least,
        max_tasks=most,
        cool_down_s=cool_down_s,
        max_rescales_per_hour=an_hour,
    )
    nature = dataclasses.replace(nature, max_records=int(15 * nature.task_rate * least))
    job = SimulatedJob(
        nature,
        lambda seconds: nature.task_rate * shares[min(3, int(seconds // 1000))],
        tasks=least,
    )
    job.run(4000, policy, look_s=10)
    assert all(least <= rescale.after <= most for rescale in job.rescales)
    asked = [seconds for seconds, decision in job.decisions if decision.action == "rescale"]
    ends = [(rescale.at - BEGUN).total_seconds() for rescale in job.rescales]
    assert all(now - end >= cool_down_s for now, end in zip(asked[1:], ends, strict=False))
    for now in asked:
        assert sum(now - 3600 < end <= now for end in ends) < an_hour


def test_a_job_outside_of_its_limits_is_brought_inside() -> None:
    """Whatever its load; key groups and cores are limits, too."""
    job = SimulatedJob(Nature(), steady(100), tasks=9).run(60)
    for bounds, least, most, wanted in [
        (Bounds(128), 1, 4, 4),
        (Bounds(128, cores=2), 1, None, 2),
        (Bounds(8), 1, None, 8),
        (Bounds(128), 12, 20, 12),
        (Bounds(8), 12, 20, 8),
    ]:
        policy = msgspec.structs.replace(POLICY, min_tasks=least, max_tasks=most)
        decision = decide(policy, (), job.metrics, bounds, at(60))
        assert decision is not None
        assert (decision.action, decision.tasks) == ("rescale", wanted)
        assert "which is outside the limits" in decision.reason


def test_nothing_is_decided_without_metrics() -> None:
    """Without any, with too few since the start, and with none for a long time."""
    assert decide(POLICY, (), [], Bounds(128), BEGUN) is None
    job = SimulatedJob(Nature(interval_s=5), steady(5000))
    for number in range(3):
        job.batch()
        decision = decide(POLICY, (), job.metrics, job.bounds, at(job.now))
        assert decision is not None
        assert (decision.action, "too few" in decision.reason) == ("none", True), number
    job = SimulatedJob(Nature(interval_s=5), steady(500)).run(120)
    late = decide(POLICY, (), job.metrics, job.bounds, at(job.now + 300))
    assert late is not None
    assert late.action == "none"
    assert late.reason == "No micro-batch has ended for 300 s."


def test_a_dry_run_tells_and_does_nothing() -> None:
    """What it tells is marked, and counts for the cool-down as if it had been done."""
    policy = msgspec.structs.replace(POLICY, dry_run=True)
    job = SimulatedJob(Nature(interval_s=5), steady(1500)).run(600, policy)
    told = [(seconds, decision) for seconds, decision in job.decisions if decision.action == "rescale"]
    assert told
    assert all(decision.dry_run for _, decision in told)
    assert {metrics.parallelism for metrics in job.metrics} == {1}
    assert all(later - sooner >= policy.cool_down_s for (sooner, _), (later, _) in itertools.pairwise(told))


def test_a_hot_key_group_is_not_fed_more_tasks() -> None:
    """After one scale-out has shown that more do not help there is no other, and the reason says so."""
    nature = Nature(hot_share=0.9, interval_s=5, seed=1)
    policy = msgspec.structs.replace(POLICY, max_rescales_per_hour=100)
    job = SimulatedJob(nature, steady(1100), tasks=2).run(1500, policy)
    assert changes(job) == [(2, 4)]
    assert "not help" in job.decisions[-1][1].reason


def test_fewer_tasks_that_did_not_do_are_not_tried_again() -> None:
    """A job whose tasks do worse when there are fewer of them would swing otherwise."""
    job = SimulatedJob(Nature(interval_s=5), steady(1200), tasks=4).run(600)
    now = at(job.now)
    free = decide(POLICY, (), job.metrics, job.bounds, now)
    assert free is not None
    assert (free.action, free.tasks) == ("rescale", 2)
    before = Rescale(at=now - dt.timedelta(minutes=20), before=2, after=4, rate=1100)
    held = decide(POLICY, (before,), job.metrics, job.bounds, now)
    assert held is not None
    assert held.action == "none"
    assert "2 tasks did not suffice for 1100 records/s, and 1200 arrive" in held.reason
    more = decide(POLICY, (msgspec.structs.replace(before, rate=2000.0),), job.metrics, job.bounds, now)
    assert more is not None
    assert more.tasks == 2


@pytest.mark.parametrize("tells", ["records", "seconds"])
def test_a_backlog_is_caught_up_with(tells: str) -> None:
    """A job that has stood still, and could process what arrives but not what waits as well, gets more tasks."""
    nature = Nature(interval_s=5, tells=tells, max_records=10_000)
    job = SimulatedJob(nature, steady(700)).run(300)
    job.now += 1800
    job.run(job.now + 1200, POLICY)
    assert [after > before for before, after in changes(job)][:1] == [True]
    assert job.waits_s() < 10


def test_rescales_are_found_in_metrics() -> None:
    job = SimulatedJob(Nature(interval_s=5, downtime_s=7), steady(1500)).run(600, POLICY)
    (found,) = rescales_of(job.metrics)
    (done,) = job.rescales
    assert (found.before, found.after) == (done.before, done.after) == (1, 2)
    assert 7 <= found.downtime_s <= 12
