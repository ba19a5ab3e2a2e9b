"""Scaling of managed jobs: their policies, past rescales, and new decisions. Pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.scaling.autoscale_decisions import Decision, Rescale
from penstock.scaling.policy import ScalingPolicy, policy_of
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.store.row_types import Event, JobRow, OperationRow

__all__ = [
    "AUTOSCALER",
    "REFUSED",
    "WOULD_RESCALE",
    "ScalingDecision",
    "arguments_of",
    "event_of",
    "is_scalable",
    "past_rescales",
    "policy_for",
    "reason_to_yield",
]

AUTOSCALER: Final = "autoscaler"
"""The user name under which policies rescale jobs."""

REFUSED: Final = "no rescale"
"""The event of a decision not to rescale though the load requires it."""
WOULD_RESCALE: Final = "would rescale"
"""The event of a decision to rescale in a dry run."""

_SECOND: Final = dt.timedelta(seconds=1)
# The most time from the end of an operation to the next micro-batch, whose metrics show the same rescale.
_SAME_RESCALE: Final = 120 * _SECOND


class ScalingDecision(msgspec.Struct, frozen=True):
    """The last decision on a job, and its time in milliseconds since 1970."""

    at_ms: int
    decision: Decision


def policy_for(settings: Mapping[str, Any]) -> ScalingPolicy | None:
    """Return the scaling policy in the settings of a job; None if they have none."""
    scaling = settings.get("scaling")
    return None if scaling is None else policy_of(scaling)


def is_scalable(job: JobRow, unfinished: Sequence[OperationRow]) -> bool:
    """Return whether a policy may rescale a job now: it runs, should keep running, and has no pending operation."""
    return job.status is JobStatus.RUNNING and job.desired is Desired.RUNNING and not unfinished


def reason_to_yield(operation: OperationRow, job: JobRow, unfinished: Sequence[OperationRow]) -> str | None:
    """Return why a rescale by the autoscaler must yield to a request by a user; None if it need not."""
    if operation.created_by != AUTOSCALER:
        return None
    if job.desired is not Desired.RUNNING:
        return f"A user has since requested that the job be {job.desired}."
    other = next((found for found in unfinished if found.created_by != AUTOSCALER), None)
    return None if other is None else f"A user has since requested something else: {other.kind} ({other.id})."


def past_rescales(
    operations: Sequence[OperationRow], events: Sequence[Event], seen: Sequence[Rescale]
) -> list[Rescale]:
    """Return the recorded rescales of a job, oldest first.

    Args:
        operations: its rescales, by any user. A failed one changed nothing, but counts.
        events: the events of the autoscaler. What a dry run would have done counts as done.
        seen: the rescales in its metrics. Those without an operation were done without the manager.

    """
    found = [rescale for operation in operations if (rescale := _of_operation(operation)) is not None]
    for rescale in seen:
        twins = (
            done
            for done in found
            if (done.before, done.after) == (rescale.before, rescale.after)
            and abs(done.at - rescale.at) < _SAME_RESCALE
        )
        if next(twins, None) is None:
            found.append(rescale)
    found += [
        Rescale(
            at=_time(event.at_ms),
            before=event.detail["before"],
            after=event.detail["parallelism"],
            rate=event.detail.get("rate"),
            capacity=event.detail.get("capacity"),
        )
        for event in events
        if event.what == WOULD_RESCALE
    ]
    return sorted(found, key=lambda rescale: rescale.at)


def arguments_of(decision: Decision) -> dict[str, Any]:
    """Return a decision as the arguments of an operation or the detail of an event, as `past_rescales` reads them."""
    arguments = {
        "parallelism": decision.tasks,
        "before": decision.before,
        "cause": decision.cause,
        "reason": decision.reason,
    }
    rates = {"rate": decision.rate, "capacity": decision.capacity}
    return arguments | {name: round(rate, 3) for name, rate in rates.items() if rate is not None}


def event_of(decision: Decision, events: Sequence[Event]) -> str | None:
    """Return the event for a decision that changes nothing; None if there is nothing new to record.

    Args:
        decision: the decision.
        events: the events of the autoscaler on the job, oldest first.

    """
    if decision.action == "rescale" and decision.dry_run:
        what = WOULD_RESCALE
    elif decision.is_refusal:
        what = REFUSED
    else:
        return None
    last = events[-1] if events else None
    if last is None or last.what != what:
        return what
    same = (last.detail.get("cause"), last.detail.get("before"), last.detail.get("parallelism"))
    return None if same == (decision.cause, decision.before, decision.tasks) else what


def _of_operation(operation: OperationRow) -> Rescale | None:
    """Return an ended operation as a rescale; None if it has not ended or had nothing to do."""
    if operation.ended_ms is None:
        return None
    result = operation.result or {}
    # If a manager died after the answer, the next one asks again, and the answer is that there is nothing to do.
    before = operation.arguments.get("before", result.get("before"))
    if before is None:
        return None
    after = before if operation.error is not None else result.get("after", operation.arguments["parallelism"])
    if before == after and operation.error is None:
        return None
    return Rescale(
        at=_time(operation.ended_ms),
        before=before,
        after=after,
        downtime_s=result.get("downtime_s", result.get("seconds", 0.0)),
        rate=operation.arguments.get("rate"),
        capacity=operation.arguments.get("capacity"),
    )


def _time(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
