"""Decisions: the next status of a job and its effect, from what users want and the state of its driver.

The functions are pure. The manager first records a decision and then acts. What it could not do is decided again the
next time, so each effect must be idempotent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.server.lifecycle.restarts import (
    NO_FAILURES,
    NoRestart,
    RestartHistory,
    RestartStrategy,
    decide_restart,
)
from penstock.server.lifecycle.statuses import ENDED, WITH_DRIVER, Desired, JobStatus

__all__ = [
    "GRACE_MS",
    "HINDERED_MS",
    "Decision",
    "Driver",
    "DriverState",
    "Effect",
    "End",
    "EndKind",
    "JobFacts",
    "decide",
    "decide_outcome",
    "may_want",
]

GRACE_MS: Final = 5000
"""The time that a driver may take to terminate before it is killed."""


HINDERED_MS: Final = 10_000
"""The delay of a job after a failure of the system, which is not a failure of the job."""


class DriverState(enum.Enum):
    """The observed state of a job's newest run."""

    NONE = "no run yet"
    UNLAUNCHED = "its process was never started"
    ALIVE = "its process is alive"
    ENDED = "its process has ended, or will never start"
    UNKNOWN = "it cannot be observed"


class EndKind(enum.Enum):
    """How a run ended."""

    FINISHED = "at the end of its input"
    STOPPED = "gracefully, on request"
    FAILED = "with an error that may not recur"
    REFUSED = "with an error that would recur"
    HINDERED = "by a failure of the system, such as a full disk"
    KILLED = "without a final status"
    VOIDED = "before its process was started"


@dataclass(frozen=True)
class End:
    """The end of a run: how it ended, and why.

    `stop_done` says that the run has answered the stop request of the job: with `details`, or with `stop_error` if it
    has stopped but could not do everything requested.
    """

    kind: EndKind
    why: str
    stop_done: bool = False
    stop_error: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Driver:
    """The observed state of a job's newest run. `working` says that its query has begun; `end` is set after its end."""

    state: DriverState
    working: bool = False
    end: End | None = None


@dataclass(frozen=True)
class JobFacts:
    """The recorded facts about a job.

    `since_ms` is the time of its last change of status, `delay_ms` how long it waits in RESTARTING, `signalled_ms` when
    its driver was asked to terminate. `stop_needs_driver` says that its stop needs a running job: to take a savepoint,
    or to drain it.
    """

    id: str
    status: JobStatus
    desired: Desired
    strategy: RestartStrategy
    history: RestartHistory = NO_FAILURES
    since_ms: int = 0
    delay_ms: int = 0
    signalled_ms: int | None = None
    stop_needs_driver: bool = False


class Effect(enum.Enum):
    """An action on a run, after the decision is recorded."""

    LAUNCH = "start its process, unless it was started before"
    VOID = "make sure that its process never starts"
    ASK_STOP = "ask its driver to stop between two micro-batches"
    TERMINATE = "ask its driver to end at once"
    KILL = "kill all of its processes"


@dataclass(frozen=True)
class Decision:
    """What to record, and then to do.

    A status of None leaves the status unchanged; STARTING begins a new run. `history` and `delay_ms` belong to
    RESTARTING. `signals` records the current time as that of the signal. `wait_ms` is the time after which to decide
    again, if nothing else happens.
    """

    status: JobStatus | None = None
    effect: Effect | None = None
    reason: str = ""
    history: RestartHistory | None = None
    delay_ms: int = 0
    signals: bool = False
    wait_ms: int | None = None

    @property
    def changes(self) -> bool:
        """Whether the decision has anything to record."""
        return self.status is not None or self.signals


_NOTHING: Final = Decision()


def decide(job: JobFacts, driver: Driver, now_ms: int) -> Decision:
    """Decide on the next status of a job and the effect. Defined for all facts and observations that can occur."""
    if driver.state is DriverState.UNKNOWN:
        return _NOTHING
    if job.status not in WITH_DRIVER:
        if driver.state is DriverState.ALIVE:
            return Decision(effect=Effect.KILL)
        if driver.state is DriverState.UNLAUNCHED:
            return Decision(effect=Effect.VOID)
        return _NOTHING if job.status in ENDED else _decide_without_driver(job, now_ms)
    if driver.state is DriverState.UNLAUNCHED:
        launches = job.status is JobStatus.STARTING and _wants_driver(job)
        return Decision(effect=Effect.LAUNCH if launches else Effect.VOID)
    if driver.state is DriverState.ALIVE:
        return _decide_with_driver(job, driver, now_ms)
    return _decide_after_end(job, driver.end or End(EndKind.KILLED, "its driver left no trace"), now_ms)


def may_want(before: Desired, after: Desired) -> bool:
    """Return whether a user may change the desired status. Cancel overrides stop, and neither can be undone."""
    if before in (Desired.RUNNING, Desired.PAUSED):
        return True
    return after is Desired.CANCELED and before is Desired.FINISHED


def decide_outcome(kind: str, status: JobStatus, *, stop_done: bool) -> tuple[bool, str] | None:
    """Decide whether the status of a job ends an operation on it. Returns None if the operation continues.

    Otherwise returns whether it succeeded, and if not, why. `stop_done` says that the stop of the job has done
    everything requested.
    """
    aims = {"cancel": JobStatus.CANCELED, "stop": JobStatus.FINISHED, "pause": JobStatus.PAUSED}
    aim = aims.get(kind, JobStatus.RUNNING)
    if kind == "stop" and status is aim and not stop_done:
        return False, "The job FINISHED by itself before it could be stopped as requested."
    if kind in (*aims, "resume") and status is aim:
        return True, ""
    if kind not in ("savepoint", "dump") and status in ENDED:
        return False, f"The job became {status} before the operation was done."
    return None


def _wants_driver(job: JobFacts) -> bool:
    return job.desired is Desired.RUNNING or (job.desired is Desired.FINISHED and job.stop_needs_driver)


def _decide_without_driver(job: JobFacts, now_ms: int) -> Decision:
    if not _wants_driver(job):
        return (
            _NOTHING
            if job.status is job.desired.status
            else Decision(job.desired.status, reason="a user requested it")
        )
    if job.status is JobStatus.RESTARTING:
        waits_ms = _remaining_ms(job.since_ms, job.delay_ms, now_ms)
        if waits_ms > 0:
            return Decision(wait_ms=waits_ms)
        return Decision(JobStatus.STARTING, reason="its delay is over")
    return Decision(JobStatus.STARTING, reason="a user requested it")


def _decide_with_driver(job: JobFacts, driver: Driver, now_ms: int) -> Decision:
    if job.desired is Desired.CANCELED:
        if job.status is not JobStatus.STOPPING:
            return Decision(JobStatus.STOPPING, reason="a user cancels it")
        if job.signalled_ms is None:
            return Decision(effect=Effect.TERMINATE, signals=True, wait_ms=GRACE_MS)
        waits_ms = _remaining_ms(job.signalled_ms, GRACE_MS, now_ms)
        return Decision(wait_ms=waits_ms) if waits_ms > 0 else Decision(effect=Effect.KILL)
    if job.status is JobStatus.STOPPING:
        # Also if a user has resumed the job since: then it starts again afterwards.
        return Decision(effect=Effect.ASK_STOP)
    if job.status is JobStatus.STARTING:
        # A driver accepts no requests before its query runs.
        return Decision(JobStatus.RUNNING, reason="its query runs") if driver.working else _NOTHING
    if job.desired is Desired.RUNNING:
        return _NOTHING
    what = "pauses" if job.desired is Desired.PAUSED else "stops"
    return Decision(JobStatus.STOPPING, reason=f"a user {what} it")


def _decide_after_end(job: JobFacts, end: End, now_ms: int) -> Decision:
    if end.kind is EndKind.FINISHED:
        return Decision(JobStatus.FINISHED, reason=end.why)
    if job.desired in (Desired.CANCELED, Desired.PAUSED):
        return Decision(job.desired.status, reason=end.why)
    if job.desired is Desired.FINISHED and (end.stop_done or not job.stop_needs_driver):
        return Decision(JobStatus.FINISHED, reason=end.why)
    if end.kind is EndKind.REFUSED:
        return Decision(JobStatus.FAILED, reason=end.why)
    if end.kind is EndKind.HINDERED and not isinstance(job.strategy, NoRestart):
        # This is not a failure of the job, and may recur until, for example, the disk has space.
        reason = f"{end.why} (restart in {HINDERED_MS / 1000:g} s)"
        return Decision(JobStatus.RESTARTING, reason=reason, history=job.history, delay_ms=HINDERED_MS)
    resumed = job.status is JobStatus.STOPPING and job.desired is Desired.RUNNING
    if end.kind is EndKind.VOIDED or (resumed and end.kind is EndKind.STOPPED):
        return Decision(JobStatus.RESTARTING, reason=end.why, history=job.history)
    restart = decide_restart(job.strategy, job.history, job.id, now_ms)
    reason = f"{end.why} ({restart.reason})"
    if restart.delay_ms is None:
        return Decision(JobStatus.FAILED, reason=reason, history=restart.history)
    return Decision(JobStatus.RESTARTING, reason=reason, history=restart.history, delay_ms=restart.delay_ms)


def _remaining_ms(since_ms: int, span_ms: int, now_ms: int) -> int:
    """Return the rest of a span; 0 if it begins in the future, since the clock went back by an unknown amount."""
    return max(since_ms + span_ms - now_ms, 0) if now_ms >= since_ms else 0
