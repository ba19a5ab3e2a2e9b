"""Advice: which parallelism, batch interval and number of cores a job needs, and why, from its metrics.

The method is that of DS2 (capacity.py names the paper). It compares the rate of arrival with what the job could
process, and computes the number of tasks from that. It is exact if tasks share work evenly. They never quite do, so it
is repeated after each rescale, and settles within three.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.metrics.batch_metrics import BatchMetrics
from penstock.scaling.autoscale_decisions import pressure, rate_with_backlog, rescales_of
from penstock.scaling.capacity import HOT, Bounds, Load, LoadModel, Measured, measure_capacity, tasks_text
from penstock.scaling.policy import ScalingPolicy

__all__ = ["Advice", "Confidence", "Recommendation", "advise"]

Confidence: TypeAlias = Literal["none", "low", "medium", "high"]

_ENOUGH_BATCHES: Final = 20
_FEW_BATCHES: Final = 8
_STEADY: Final = 0.25
_SURE: Final = 0.15
# More tasks do not help once the load is within this factor of the lowest possible.
_NEAR_BEST: Final = 1.05


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on one setting: its present and its wanted value, the reason, the measurements, and the cost of a change.

    `now` is None if it is not known. Without a change `wanted` equals `now`.
    """

    setting: Literal["parallelism", "batch-interval-ms", "cores"]
    now: int | None
    wanted: int | None
    why: str
    measurements: dict[str, float]
    cost: str = ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice on a job and the confidence in it. `doubts` are the reasons against it."""

    job: str
    confidence: Confidence
    doubts: list[str]
    recommendations: list[Recommendation] = []
    load: Load | None = None
    measured: Measured | None = None


def advise(policy: ScalingPolicy, found: Sequence[BatchMetrics], bounds: Bounds, window_s: float) -> Advice:
    """Return the advice on a job.

    Args:
        policy: the target utilisation and the limits of time.
        found: the metrics of the job, oldest first. Those before the window show skew and rescales.
        bounds: its key groups, and its number of cores if known.
        window_s: the period for the rate of arrival, in seconds, which ends with the newest metrics.

    """
    job = found[-1].job if found else ""
    state = measure_capacity(found, bounds, window_s)
    if state is None:
        return Advice(
            job=job,
            confidence="none",
            doubts=[
                "There are too few micro-batches since the start or the last rescale; wait for ten more."
            ],
        )
    model = LoadModel(state, bounds, policy.longest_interval_s)
    load = model.now()
    doubts = _doubts(policy, state, load)
    why = pressure(policy, model, load)
    tasks, parallelism = _parallelism(policy, found, model, load, why)
    return Advice(
        job=job,
        confidence=_confidence(state, doubts),
        doubts=doubts,
        recommendations=[
            parallelism,
            _interval(policy, model, tasks),
            _cores(policy, model, tasks, why),
        ],
        load=load,
        measured=state,
    )


def _confidence(state: Measured, doubts: Sequence[str]) -> Confidence:
    if len(doubts) > 1 or state.batches < _FEW_BATCHES:
        return "low"
    return "medium" if doubts else "high"


def _doubts(policy: ScalingPolicy, state: Measured, load: Load) -> list[str]:
    """Return the reasons not to trust the metrics."""
    found: list[str] = []
    if state.batches < _ENOUGH_BATCHES:
        found.append(f"There are only {state.batches} micro-batches in {state.seconds:.0f} s.")
    if not state.cost.is_determined:
        found.append(
            "The micro-batches are too few or too similar to determine what an empty one costs; all time counts "
            "as time of records."
        )
    elif load.high - load.low > 2 * _SURE:
        found.append(f"The load is only known to be between {load.low:.2f} and {load.high:.2f}.")
    if state.rate_change > _STEADY:
        found.append(
            f"The rate of arrival has changed by {state.rate_change:.0%} within {state.seconds:.0f} s."
        )
    if state.lag_s is None and state.utilisation > policy.target_utilisation:
        found.append("The sources do not report lag; more may arrive than is read.")
    if state.skew is not None and state.skew >= HOT and state.hot_share is None:
        found.append(
            f"The fullest task of {state.hot_step} has {state.skew:.1f} times the mean. If that is one key, more tasks "
            "do not help; metrics at another parallelism will show."
        )
    return found


def _parallelism(
    policy: ScalingPolicy, found: Sequence[BatchMetrics], model: LoadModel, load: Load, why: str | None
) -> tuple[int, Recommendation]:
    """Return the number of tasks that the job needs, and the advice on it."""
    state, tasks, target = model.measured, model.tasks, policy.target_utilisation
    rate = rate_with_backlog(policy, state)
    wanted, text = tasks, f"The load is {load.likely:.2f}; that fits {tasks_text(tasks)}."
    if why is not None:
        needed = model.tasks_for(rate, target)
        if needed is None:
            helpful = _most_useful_tasks(model, rate)
            wanted = helpful if model.is_gain(rate, helpful) else tasks
            text = f"{why} {_limit(policy, model, rate)}"
        else:
            wanted = max(tasks, needed)
            backlog = ", including the backlog," if rate > state.arriving else ""
            text = f"{why} {rate:.0f} records/s{backlog} need {tasks_text(wanted)}."
    elif load.high < policy.scale_in_below:
        needed = model.at_most().tasks_for(rate, target)
        if needed is not None and needed < tasks and needed * policy.min_factor <= tasks:
            wanted = needed
            below = f"below {policy.scale_in_below:g}"
            text = f"The load is {load.likely:.2f}, {below}; {tasks_text(wanted)} would suffice."
    then = model.at(rate, wanted)
    measurements = {
        "arriving_per_s": state.arriving,
        "processed_per_s": state.processed,
        "load": load.likely,
        "load_then": then,
        "utilisation": state.utilisation,
        "key_groups": model.bounds.key_groups,
    }
    known = {
        "task_capacity_per_s": state.task_capacity,
        "lag_s": state.lag_s,
        "skew": state.skew,
        "hot_share": state.hot_share,
    }
    measurements |= {name: value for name, value in known.items() if value is not None}
    return wanted, Recommendation(
        setting="parallelism",
        now=tasks,
        wanted=wanted,
        why=text,
        measurements=_round_values(measurements),
        cost="" if wanted == tasks else _cost_of_rescale(found, state),
    )


def _interval(policy: ScalingPolicy, model: LoadModel, tasks: int) -> Recommendation:
    """Return the advice on the interval between the starts of micro-batches."""
    state = model.measured
    period_s = state.seconds / state.batches
    now_ms, longest_s = state.batch_interval_ms, policy.longest_interval_s
    # The load of records alone, however few micro-batches there are.
    for_records = dataclasses.replace(model, longest_interval_s=math.inf).at(state.arriving, tasks)
    room = policy.target_utilisation - for_records
    wanted_ms: int | None = now_ms
    measurements = {
        "fixed_s": state.cost.fixed_s,
        "load_of_records": for_records,
        "utilisation": state.utilisation,
        "period_s": period_s,
    }
    if not state.cost.is_determined:
        text = "The cost of an empty micro-batch is not known yet."
    elif room <= 0:
        text = f"Records alone take {for_records:.0%} of the time, which no interval changes."
    else:
        min_s = state.cost.fixed_s / room
        measurements["min_interval_s"] = min_s
        empty = f"A micro-batch costs {state.cost.fixed_s:.2f} s however few records it has."
        if min_s > longest_s:
            text = f"{empty} That would need an interval of {min_s:.1f} s, above {longest_s:g} s."
        elif state.utilisation > policy.target_utilisation and min_s > 1.2 * period_s:
            wanted_ms = _round_up(1000 * min_s)
            text = (
                f"{empty} With one every {wanted_ms} ms the job would work for {policy.target_utilisation:.0%} of the "
                "time, which leaves cores for others."
            )
        else:
            text = f"{empty} An interval of {_round_up(1000 * min_s)} ms or more would suffice."
    is_changed = wanted_ms != now_ms
    return Recommendation(
        setting="batch-interval-ms",
        now=now_ms,
        wanted=wanted_ms,
        why=text,
        measurements=_round_values(measurements),
        cost=f"A restart with --batch-interval {wanted_ms}; records then wait up to that long."
        if is_changed
        else "",
    )


def _cores(policy: ScalingPolicy, model: LoadModel, tasks: int, why: str | None) -> Recommendation:
    """Return the advice on the number of cores."""
    bounds = model.bounds
    free = dataclasses.replace(model, bounds=Bounds(bounds.key_groups))
    wanted = min(tasks, bounds.key_groups)
    text = f"At most {tasks_text(wanted)} can work in parallel."
    if why is not None:
        rate = rate_with_backlog(policy, model.measured)
        needed = free.tasks_for(rate, policy.target_utilisation) or _most_useful_tasks(free, rate)
        if bounds.cores is not None and needed > bounds.cores:
            wanted = needed
            text = f"The job needs {tasks_text(needed)}, and {bounds.cores} cores run at most {bounds.cores} at a time."
    if bounds.cores is not None and bounds.cores > wanted:
        text += f" Keyed steps leave {bounds.cores - wanted} of {bounds.cores} cores idle."
    return Recommendation(
        setting="cores",
        now=bounds.cores,
        wanted=wanted,
        why=text,
        measurements={"tasks": tasks, "key_groups": bounds.key_groups},
        cost="" if bounds.cores in (None, wanted) else "A restart with another master or other executors.",
    )


def _most_useful_tasks(model: LoadModel, rate: float) -> int:
    """Return the smallest number of tasks at which the load is about as low as it gets."""
    found = model.tasks_for(rate, model.at(rate, model.bounds.most) * _NEAR_BEST)
    assert found is not None
    return found


def _limit(policy: ScalingPolicy, model: LoadModel, rate: float) -> str:
    """Return why no number of tasks is enough, and what helps instead."""
    state, bounds, cost = model.measured, model.bounds, model.measured.cost
    fixed, driver = cost.fixed_s / policy.longest_interval_s, rate * cost.driver_s
    if fixed + driver >= policy.target_utilisation:
        if fixed >= driver:
            return (
                f"More tasks do not help: a micro-batch costs {cost.fixed_s:.2f} s however few records it has. A "
                "longer interval, and so fewer micro-batches, does."
            )
        return (
            f"More tasks do not help: the driver alone takes {1e6 * cost.driver_s:.0f} us for each record. Faster "
            "sinks or a second job on part of the data do."
        )
    if state.hot_share is not None:
        return (
            f"More tasks do not help: one key group has {state.hot_share:.0%} of the records of {state.hot_step}. "
            "Split its key, or aggregate before it."
        )
    if bounds.cores is not None and bounds.cores < bounds.key_groups:
        return f"More tasks do not help on {bounds.cores} cores; more cores do."
    return (
        f"More tasks do not help: there are {bounds.key_groups} key groups. Take a savepoint, and start the job from "
        "it with more of them."
    )


def _cost_of_rescale(found: Sequence[BatchMetrics], state: Measured) -> str:
    """Return the cost of a rescale: the downtime of the last one, or the size of the state if there was none."""
    past = rescales_of(found)
    if not past:
        stored = sum(step.state_bytes for step in found[-1].steps.values())
        return f"A rescale, not measured here yet: {stored / 1e6:.1f} MB of state are written and read once."
    stood_s = past[-1].downtime_s
    return f"A rescale: the last one took {stood_s:.1f} s, during which {stood_s * state.arriving:.0f} records arrive."


def _round_up(amount_ms: float) -> int:
    """Round up to two significant digits: nobody sets 1,234 ms."""
    digits = len(str(math.ceil(amount_ms)))
    step = int(10 ** max(0, digits - 2))
    return math.ceil(amount_ms / step) * step


def _round_values(measurements: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in measurements.items()}
