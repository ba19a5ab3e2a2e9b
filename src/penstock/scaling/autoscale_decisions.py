"""Autoscale decisions: whether a policy rescales a job now, from its metrics and its past rescales.

Nothing is carried out here. The caller carries decisions out and passes each rescale as a `Rescale` the next time,
including those that failed and those that a dry run only reported.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.metrics.batch_metrics import BatchMetrics
from penstock.scaling.capacity import (
    MIN_GAIN,
    Bounds,
    Load,
    LoadModel,
    Measured,
    highest_rate,
    measure_capacity,
    tasks_text,
)
from penstock.scaling.policy import ScalingPolicy

__all__ = [
    "Action",
    "Cause",
    "Decision",
    "Rescale",
    "decide",
    "pressure",
    "rate_with_backlog",
    "rescales_of",
]

Action: TypeAlias = Literal["none", "rescale"]

Cause: TypeAlias = Literal[
    "more",
    "fewer",
    "outside-limits",
    "fits",
    "at-least",
    "not-long-enough",
    "too-few-batches",
    "no-micro-batches",
    "cool-down",
    "too-many-rescales",
    "at-most",
    "not-the-tasks",
    "no-gain",
    "in-vain",
    "did-not-do",
]
"""The reason for a decision, in a word. The text of the reason has the numbers."""

_REFUSALS: Final[frozenset[Cause]] = frozenset(
    {"too-many-rescales", "at-most", "not-the-tasks", "no-gain", "in-vain", "did-not-do"}
)

_HOUR: Final = dt.timedelta(hours=1)
_SAME_RATE: Final = 0.9


class Rescale(msgspec.Struct, frozen=True, kw_only=True):
    """A past rescale: when it ended, the number of tasks before and after it, and the downtime.

    `rate` and `capacity` are those of its decision. If it failed, `after` equals `before`.
    """

    at: dt.datetime
    before: int
    after: int
    downtime_s: float = 0.0
    rate: float | None = None
    capacity: float | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: no action, or a rescale from `before` to `tasks`. Without an action the two are equal.

    `cause` is `reason` in a word. `rate` is the rate of arrival in records per second, `capacity` the highest rate that
    the job could process; both are None if there are too few metrics.
    """

    action: Action
    cause: Cause
    before: int
    tasks: int
    reason: str
    dry_run: bool = False
    load: Load | None = None
    rate: float | None = None
    capacity: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the load requires another number of tasks, but the policy or the job prevents it."""
        return self.cause in _REFUSALS


def decide(
    policy: ScalingPolicy,
    past: Sequence[Rescale],
    found: Sequence[BatchMetrics],
    bounds: Bounds,
    now: dt.datetime,
) -> Decision | None:
    """Decide whether to rescale a job now. Returns None for a job without metrics.

    Args:
        policy: the scaling policy of the job.
        past: its rescales, oldest first; at least those of the last hour, and the very last one.
        found: its metrics, oldest first; those since the last rescale, or of the last `scale_in_after_s`.
        bounds: its key groups, and its cores if known.
        now: the time.

    """
    if not found:
        return None
    tasks = found[-1].parallelism
    most = min(bounds.most, bounds.key_groups if policy.max_tasks is None else policy.max_tasks)
    limits = (min(policy.min_tasks, most), most)
    wait = _reason_to_wait(policy, past, now)
    if wait is not None:
        return _no_rescale(tasks, *wait)
    if not limits[0] <= tasks <= limits[1]:
        return Decision(
            action="rescale",
            cause="outside-limits",
            before=tasks,
            tasks=min(max(tasks, limits[0]), limits[1]),
            reason=f"The job has {tasks_text(tasks)}, which is outside the limits, {limits[0]} to {limits[1]}.",
            dry_run=policy.dry_run,
        )
    fresh = [metrics for metrics in found if metrics.ended <= now]
    state = measure_capacity(fresh, bounds, policy.window_s)
    age_s = (now - found[-1].ended).total_seconds()
    if state is None:
        return _no_rescale(
            tasks, "too-few-batches", "There are too few micro-batches since the start or the last rescale."
        )
    if age_s > max(policy.window_s, 3 * policy.longest_interval_s):
        return _no_rescale(tasks, "no-micro-batches", f"No micro-batch has ended for {age_s:.0f} s.")
    model = LoadModel(state, bounds, policy.longest_interval_s)
    load = model.now()
    wanted, cause, reason = _choose_tasks(policy, past, fresh, limits, model, load)
    return Decision(
        action="none" if wanted == tasks else "rescale",
        cause=cause,
        before=tasks,
        tasks=wanted,
        reason=reason,
        dry_run=policy.dry_run,
        load=load,
        rate=state.arriving,
        capacity=model.capacity(),
    )


def pressure(policy: ScalingPolicy, model: LoadModel, load: Load) -> str | None:
    """Return why the job needs more tasks than it has; None if it does not."""
    state = model.measured
    if load.low > policy.scale_out_above:
        return f"The load is {load.likely:.2f}, above {policy.scale_out_above:g}."
    if state.lag_s is not None and state.lag_s > policy.longest_lag_s:
        behind = state.lag_s * state.arriving
        falls = state.processed - state.arriving
        with_backlog = model.at(rate_with_backlog(policy, state), model.tasks)
        # Judged by the last seconds, or by the costs once they are known.
        if falls * policy.catch_up_s < behind and not (state.cost.is_determined and with_backlog <= 1):
            return (
                f"Records wait for {state.lag_s:.0f} s, more than {policy.longest_lag_s:g} s, and the job would not "
                f"catch up within {policy.catch_up_s:g} s."
            )
    if not state.cost.is_determined and state.batch_s > policy.longest_interval_s:
        return f"A micro-batch takes {state.batch_s:.1f} s, more than {policy.longest_interval_s:g} s."
    return None


def rate_with_backlog(policy: ScalingPolicy, state: Measured) -> float:
    """Return the rate that processes arriving records, and those that wait too long, in time.

    It is at most twice the rate of arrival. Otherwise a job that has caught up would get more tasks than it needs,
    and be rescaled again.
    """
    if state.lag_s is None or state.lag_s <= policy.longest_lag_s:
        return state.arriving
    return state.arriving * (1 + min(1.0, state.lag_s / policy.catch_up_s))


def rescales_of(found: Sequence[BatchMetrics]) -> list[Rescale]:
    """Return the rescales that metrics show, oldest first: a run continued with another number of tasks."""
    return [
        Rescale(
            at=after.started,
            before=before.parallelism,
            after=after.parallelism,
            downtime_s=(after.started - before.ended).total_seconds(),
        )
        for before, after in itertools.pairwise(found)
        if before.job_id == after.job_id and before.parallelism != after.parallelism
    ]


def _reason_to_wait(
    policy: ScalingPolicy, past: Sequence[Rescale], now: dt.datetime
) -> tuple[Cause, str] | None:
    """Return why the job must not be rescaled now; None if it may be."""
    if past:
        since_s = (now - past[-1].at).total_seconds()
        if since_s < policy.cool_down_s:
            return (
                "cool-down",
                f"The last rescale was {since_s:.0f} s ago; the cool-down is {policy.cool_down_s:g} s.",
            )
    lately = sum(now - rescale.at < _HOUR for rescale in past)
    if lately >= policy.max_rescales_per_hour:
        return (
            "too-many-rescales",
            f"There were {lately} rescales within the last hour; the limit is {policy.max_rescales_per_hour}.",
        )
    return None


def _choose_tasks(
    policy: ScalingPolicy,
    past: Sequence[Rescale],
    found: Sequence[BatchMetrics],
    limits: tuple[int, int],
    model: LoadModel,
    load: Load,
) -> tuple[int, Cause, str]:
    """Return how many tasks the job should have, and why."""
    why = pressure(policy, model, load)
    if why is not None:
        if load.high <= policy.target_utilisation:
            return (
                model.tasks,
                "not-the-tasks",
                (
                    f"{why} But the job works for at most {load.high:.2f} of the time: the size of its micro-batches "
                    "or the interval between them holds it back, not the number of tasks."
                ),
            )
        return _scale_out(policy, past, limits[1], model, why)
    highest = highest_rate(found, policy.window_s, policy.scale_in_after_s)
    return _scale_in(policy, past, limits[0], model, load, highest)


def _scale_out(
    policy: ScalingPolicy, past: Sequence[Rescale], most: int, model: LoadModel, why: str
) -> tuple[int, Cause, str]:
    state, tasks = model.measured, model.tasks
    if tasks >= most:
        return tasks, "at-most", f"{why} But {tasks_text(tasks)} is the maximum."
    capacity = model.capacity()
    before = past[-1] if past and past[-1].before < past[-1].after == tasks else None
    if before is not None and _was_in_vain(before, capacity):
        return (
            tasks,
            "in-vain",
            (
                f"{why} But {tasks_text(before.before)} could process {before.capacity:.0f} records/s, and {tasks} can "
                f"process {capacity:.0f}: more do not help. penstock advise shows why."
            ),
        )
    # Once the job has caught up, the target applies; until then it may work at its limit.
    enough = model.tasks_for(state.arriving, policy.target_utilisation)
    catching_up = model.tasks_for(rate_with_backlog(policy, state), policy.scale_out_above)
    needed = most if enough is None or catching_up is None else max(enough, catching_up)
    if not state.cost.is_determined:
        # The costs are only upper bounds then, and the real ones may be far lower.
        needed = tasks
    wanted = min(most, max(needed, tasks + 1, round(tasks * policy.min_factor)))
    if not model.is_gain(state.arriving, wanted):
        return (
            tasks,
            "no-gain",
            f"{why} But {tasks_text(wanted)} would not help. penstock advise shows why.",
        )
    then = model.at(state.arriving, wanted)
    return wanted, "more", f"{why} With {tasks_text(wanted)} the load would be {then:.2f}."


def _was_in_vain(scale_out: Rescale, capacity: float | None) -> bool:
    """Return whether a scale-out has hardly raised the capacity."""
    if capacity is None or scale_out.capacity is None:
        return False
    return capacity < MIN_GAIN * scale_out.capacity


def _scale_in(
    policy: ScalingPolicy,
    past: Sequence[Rescale],
    least: int,
    model: LoadModel,
    load: Load,
    highest: float | None,
) -> tuple[int, Cause, str]:
    tasks = model.tasks
    if load.high >= policy.scale_in_below:
        return tasks, "fits", f"The load is {load.likely:.2f}; that fits."
    if tasks <= least:
        return tasks, "at-least", f"The load is {load.likely:.2f}, and {tasks_text(tasks)} is the minimum."
    if highest is None:
        return (
            tasks,
            "not-long-enough",
            f"The load is {load.likely:.2f}, but it has not been observed for {policy.scale_in_after_s:g} s yet.",
        )
    # Uncertainty counts against fewer tasks.
    dear = model.at_most()
    needed = dear.tasks_for(highest, policy.target_utilisation)
    if needed is None or needed * policy.min_factor > tasks or needed >= tasks:
        return tasks, "fits", f"The load is {load.likely:.2f}; a rescale would save too few tasks."
    wanted = max(least, needed)
    for rescale in past:
        left = rescale.before < rescale.after and rescale.rate is not None and wanted <= rescale.before
        if left and rescale.rate is not None and highest > _SAME_RATE * rescale.rate:
            return (
                tasks,
                "did-not-do",
                (
                    f"The load is {load.likely:.2f}, but {tasks_text(rescale.before)} did not suffice for "
                    f"{rescale.rate:.0f} records/s, and {highest:.0f} arrive."
                ),
            )
    then = dear.at(highest, wanted)
    return (
        wanted,
        "fewer",
        (
            f"The load is {load.likely:.2f}, below {policy.scale_in_below:g}, and at most {highest:.0f} records/s came "
            f"in {policy.scale_in_after_s:g} s; with {tasks_text(wanted)} it would be {then:.2f}."
        ),
    )


def _no_rescale(tasks: int, cause: Cause, reason: str) -> Decision:
    return Decision(action="none", cause=cause, before=tasks, tasks=tasks, reason=reason)
