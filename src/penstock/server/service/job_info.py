"""Job info: what the service tells of definitions, jobs, operations and savepoints, and what it is asked to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.manager.scaling_state import ScalingDecision
from penstock.server.runs.definitions import Changes
from penstock.server.service.job_views import shown_bindings, shown_settings
from penstock.server.store.row_types import JobRow, OperationRow

__all__ = [
    "DefinitionInfo",
    "JobInfo",
    "OperationInfo",
    "Printed",
    "SavepointDetails",
    "SavepointInfo",
    "ScalingInfo",
    "Submission",
    "TableInfo",
    "job_info",
    "operation_info",
    "with_last_decision",
]


class DefinitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job that may be submitted. Secrets in bindings are masked."""

    id: str
    name: str
    bindings: dict[str, str]
    settings: dict[str, Any]


class ScalingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is scaled: by which policy, and what was decided last, `at_ms`, of a job that is looked at alone.

    `decision` has the fields of `penstock.scaling.autoscale_decisions.Decision`.
    """

    policy: dict[str, Any]
    at_ms: int | None = None
    decision: dict[str, Any] | None = None


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job. Times are milliseconds since 1970; secrets in bindings are masked.

    `run` is the number of its newest run, `restarts` how often it failed, `next_start_ms` when a job that is RESTARTING
    is started. `progress` is how it is going, as in `penstock.jobs.commit.Progress`, of a job with a driver.
    `scaling` is there when the job has a scaling policy.
    """

    id: str
    name: str
    definition: str
    status: JobStatus
    desired: Desired
    reason: str
    since_ms: int
    created_ms: int
    created_by: str
    run: int
    restarts: int
    next_start_ms: int | None
    restart: str
    bindings: dict[str, str]
    settings: dict[str, Any]
    progress: dict[str, Any] | None = None
    scaling: ScalingInfo | None = None


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, and what came of it: PENDING, RUNNING, DONE with a result, or FAILED with an error."""

    id: str
    kind: str
    job: str
    state: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    created_ms: int
    created_by: str
    ended_ms: int | None


class Printed(NamedTuple):
    """A part of what a run has printed, and the place in bytes where it ends."""

    text: str
    end: int


class SavepointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that a job may begin with."""

    id: str
    job_name: str
    batch: int
    created_at: str | None
    uri: str


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a snapshot: a state of a step, its timers, or what is kept once for the step."""

    name: str
    step: str
    kind: str
    rows: int
    bytes: int


class SavepointDetails(SavepointInfo, frozen=True, kw_only=True):
    """A savepoint with what it holds. `used_by` are the jobs that are not over and began with it."""

    key_groups: int
    rows: int
    bytes: int
    tables: tuple[TableInfo, ...]
    positions: dict[str, Any]
    used_by: tuple[str, ...]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be run: a definition, with changes.

    `from_savepoint` is the id of a savepoint to begin with; `continues`, instead of it, that of a job that is over,
    whose checkpoint this one goes on with.
    """

    definition: str
    name: str | None = None
    changes: Changes = Changes()
    from_savepoint: str | None = None
    continues: str | None = None


def job_info(job: JobRow) -> JobInfo:
    """What there is to tell of a job."""
    waits = job.status is JobStatus.RESTARTING
    return JobInfo(
        id=job.id,
        name=job.name,
        definition=job.definition,
        status=job.status,
        desired=job.desired,
        reason=job.reason,
        since_ms=job.since_ms,
        created_ms=job.created_ms,
        created_by=job.created_by,
        run=job.epoch,
        restarts=job.history.total,
        next_start_ms=job.since_ms + job.delay_ms if waits else None,
        restart=job.restart,
        bindings=shown_bindings(job.settings),
        settings=shown_settings(job.settings),
        scaling=None if job.settings.get("scaling") is None else ScalingInfo(policy=job.settings["scaling"]),
    )


def with_last_decision(scaling: ScalingInfo, path: Path) -> ScalingInfo:
    """The scaling with the decision that the autoscaler has noted in a file, if it has."""
    try:
        made = msgspec.json.decode(path.read_bytes(), type=ScalingDecision)
    except FileNotFoundError:
        return scaling
    return msgspec.structs.replace(scaling, at_ms=made.at_ms, decision=msgspec.to_builtins(made.decision))


def operation_info(row: OperationRow) -> OperationInfo:
    """What there is to tell of an operation."""
    return OperationInfo(
        id=row.id,
        kind=row.kind,
        job=row.job_id,
        state=row.state,
        arguments=row.arguments,
        result=row.result,
        error=row.error,
        created_ms=row.created_ms,
        created_by=row.created_by,
        ended_ms=row.ended_ms,
    )
