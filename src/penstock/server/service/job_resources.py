"""Job resources: definitions, jobs, runs, operations and savepoints as the service returns them, and submissions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, StringConstraints

from penstock.bindings.secrets import redacted
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.manager.scaling_state import ScalingDecision
from penstock.server.resource import Resource
from penstock.server.runs.definitions import Changes, DefinitionProblem, Text
from penstock.server.store.row_types import JobRow, OperationRow, OperationState, RunRow

__all__ = [
    "ID_PATTERN",
    "Definition",
    "DefinitionProblem",
    "Definitions",
    "Id",
    "Job",
    "Log",
    "Operation",
    "Run",
    "Savepoint",
    "SavepointDetails",
    "Scaling",
    "SnapshotTable",
    "Submission",
    "job_of",
    "mask_bindings",
    "mask_settings",
    "operation_of",
    "run_of",
    "with_last_decision",
]

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
DefinitionId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}(\.[A-Za-z0-9_-]{1,128}){0,8}$")
]


@dataclass(frozen=True, kw_only=True)
class Definition(Resource):
    """A job that may be submitted. Secrets in bindings are masked."""

    id: str
    name: str
    bindings: dict[str, str]
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Definitions(Resource):
    """The definitions in the folders that the server was started with."""

    items: tuple[Definition, ...]
    problems: tuple[DefinitionProblem, ...]


@dataclass(frozen=True, kw_only=True)
class Scaling(Resource):
    """How a job is scaled automatically."""

    policy: dict[str, Any]
    """The scaling policy of its definition."""
    at_ms: int | None
    """When the last decision was made; only in the answer for one job."""
    decision: dict[str, Any] | None
    """The last decision: action, cause, before, tasks, reason, dry_run, load, rate, capacity."""


@dataclass(frozen=True, kw_only=True)
class Job(Resource):
    """A job. Secrets in bindings and settings are masked."""

    id: str
    name: str
    definition: str
    status: JobStatus
    desired: Desired
    """What a user wants the job to be."""
    reason: str
    """Why it has its status."""
    since_ms: int
    """Since when it has its status."""
    created_ms: int
    created_by: str
    run: int
    """The number of its newest run; 0 before the first."""
    restarts: int
    """How often it failed and was restarted."""
    next_start_ms: int | None
    """When a RESTARTING job starts."""
    restart: str
    """Its restart strategy."""
    bindings: dict[str, str]
    settings: dict[str, Any]
    progress: dict[str, Any] | None
    """How it is doing; only in the answer for one job."""
    scaling: Scaling | None
    """How it is scaled automatically; null without a policy."""


@dataclass(frozen=True, kw_only=True)
class Run(Resource):
    """One run of a job, and how it ended."""

    run: int
    host: str
    created_ms: int
    pid: int | None
    ended_ms: int | None
    end_kind: str | None
    exit_code: int | None
    why: str | None


@dataclass(frozen=True, kw_only=True)
class Operation(Resource):
    """What was requested, and the outcome. Poll it while it is PENDING or RUNNING."""

    id: str
    kind: str
    job: str
    state: OperationState
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    created_ms: int
    created_by: str
    ended_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Log(Resource):
    """What a run has printed."""

    run: int
    text: str
    end: int
    """Where it ends, in bytes: `begin` for what the run prints next."""


@dataclass(frozen=True, kw_only=True)
class Savepoint(Resource):
    """A savepoint that a job may begin with."""

    id: str
    job_name: str
    batch: int
    created_at: str | None
    uri: str


@dataclass(frozen=True, kw_only=True)
class SnapshotTable(Resource):
    """A table of a snapshot: a state of a step, its timers, or what is kept once for the step."""

    name: str
    step: str
    kind: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SavepointDetails(Savepoint):
    """A savepoint with what it holds."""

    key_groups: int
    rows: int
    bytes: int
    tables: tuple[SnapshotTable, ...]
    positions: dict[str, Any]
    """Where each stream continues."""
    used_by: tuple[str, ...]
    """The jobs that have not ended and began with it."""


class Submission(Changes):
    """A job to run: the id of a definition, with changes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"definition": "rooms", "parallelism": 4, "restart": "none"}]}
    )

    definition: DefinitionId
    name: Text | None = None
    from_savepoint: Id | None = Field(default=None, description="The id of a savepoint to begin with.")
    continues: Id | None = Field(
        default=None,
        description="The id of a job that has ended, whose checkpoint this one takes over; not with from_savepoint.",
    )


def job_of(row: JobRow) -> Job:
    """A job, without its progress and the last decision on its scaling."""
    policy = row.settings.get("scaling")
    waits = row.status is JobStatus.RESTARTING
    return Job(
        id=row.id,
        name=row.name,
        definition=row.definition,
        status=row.status,
        desired=row.desired,
        reason=row.reason,
        since_ms=row.since_ms,
        created_ms=row.created_ms,
        created_by=row.created_by,
        run=row.epoch,
        restarts=row.history.total,
        next_start_ms=row.since_ms + row.delay_ms if waits else None,
        restart=row.restart,
        bindings=mask_bindings(row.settings),
        settings=mask_settings(row.settings),
        progress=None,
        scaling=None if policy is None else Scaling(policy=policy, at_ms=None, decision=None),
    )


def with_last_decision(scaling: Scaling, path: Path) -> Scaling:
    """The scaling with the decision that the autoscaler has written to a file, if any."""
    try:
        made = msgspec.json.decode(path.read_bytes(), type=ScalingDecision)
    except FileNotFoundError:
        return scaling
    return dataclasses.replace(scaling, at_ms=made.at_ms, decision=msgspec.to_builtins(made.decision))


def run_of(row: RunRow) -> Run:
    """A run."""
    return msgspec.convert(msgspec.structs.asdict(row) | {"run": row.epoch}, Run)


def operation_of(row: OperationRow) -> Operation:
    """An operation."""
    return msgspec.convert(msgspec.structs.asdict(row) | {"job": row.job_id}, Operation)


def mask_bindings(settings: Mapping[str, Any]) -> dict[str, str]:
    """The bindings of a job's settings, with secrets masked."""
    return {name: redacted(uri) for name, uri in settings.get("bindings", {}).items()}


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The other settings, with secrets masked. Values of Spark's may be keys of object stores: only names are shown."""
    masked = {
        name: redacted(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if name != "bindings"
    }
    return {**masked, "spark": dict.fromkeys(settings.get("spark", {}), "***")}
