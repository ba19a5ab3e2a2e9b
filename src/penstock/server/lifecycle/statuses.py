"""Job statuses: the statuses of managed jobs, and the legal transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.errors import PenstockError

__all__ = [
    "ENDED",
    "TRANSITIONS",
    "WITH_DRIVER",
    "Desired",
    "IllegalTransitionError",
    "JobStatus",
    "check_transition",
]


class JobStatus(enum.StrEnum):
    """The status of a job."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RESTARTING = "RESTARTING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Desired(enum.StrEnum):
    """The status that users want a job to have."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"

    @property
    def status(self) -> JobStatus:
        """The job status that fulfils it."""
        return JobStatus(self.value)


class IllegalTransitionError(PenstockError):
    """An illegal transition of a job: a bug in penstock."""


ENDED: Final = frozenset({JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED})
"""The statuses of ended jobs. They never change, and another job may take over the checkpoint."""

WITH_DRIVER: Final = frozenset({JobStatus.STARTING, JobStatus.RUNNING, JobStatus.STOPPING})
"""The statuses of jobs whose newest run has not ended, as far as known."""

_S = JobStatus
TRANSITIONS: Final[Mapping[JobStatus, frozenset[JobStatus]]] = MappingProxyType(
    {
        _S.CREATED: frozenset({_S.STARTING, _S.PAUSED, _S.FINISHED, _S.CANCELED}),
        _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.RESTARTING, _S.PAUSED}) | ENDED,
        _S.RUNNING: frozenset({_S.STOPPING, _S.RESTARTING, _S.PAUSED}) | ENDED,
        _S.STOPPING: frozenset({_S.RESTARTING, _S.PAUSED}) | ENDED,
        _S.RESTARTING: frozenset({_S.STARTING, _S.PAUSED, _S.FINISHED, _S.CANCELED}),
        _S.PAUSED: frozenset({_S.STARTING, _S.FINISHED, _S.CANCELED}),
        _S.FINISHED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELED: frozenset(),
    }
)
"""The legal transitions. Decisions make all of these, and no others."""


def check_transition(before: JobStatus, after: JobStatus) -> None:
    """Raise IllegalTransitionError unless a transition is legal.

    >>> check_transition(JobStatus.CREATED, JobStatus.STARTING)
    """
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(
            f"A job that is {before} cannot become {after}. This is a bug in penstock; the job stays {before}."
        )
