"""Job resources: definitions, jobs, runs, operations and savepoints, as the service returns them, and submissions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, StringConstraints

from penstock.base.durations import milliseconds
from penstock.bindings.secrets import redact
from penstock.metrics.batch_metrics import Mode, mode_of
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
    "add_last_decision",
    "job_of",
    "mask_bindings",
    "mask_settings",
    "operation_of",
    "run_of",
]

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
DefinitionId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}(\.[A-Za-z0-9_-]{1,128}){0,8}$")
]


class Definition(Resource):
    """A job that can be submitted. Secrets are masked."""

    id: str
    name: str
    bindings: dict[str, str]
    """The URI of each stream and sink, by name."""
    settings: dict[str, Any]


class Definitions(Resource):
    """The definitions in the folders that the server was started with."""

    items: tuple[Definition, ...]
    problems: tuple[DefinitionProblem, ...]
    """The files that fail to define a job."""


class Scaling(Resource):
    """The automatic scaling of a job."""

    policy: dict[str, Any]
    """The scaling policy in the settings of the job."""
    at_ms: int | None
    """The time of the last decision; only in the response for a single job."""
    decision: dict[str, Any] | None
    """The last decision: action, cause, before, tasks, reason, dry_run, load, rate, capacity.

    Only in the response for a single job.
    """


class Job(Resource):
    """A job. Secrets in bindings and settings are masked."""

    id: str
    name: str
    definition: str
    """The id of its definition."""
    status: JobStatus
    desired: Desired
    """The status that users want the job to have."""
    reason: str
    """The reason for its status."""
    since_ms: int
    """The time of its last change of status."""
    created_ms: int
    created_by: str
    run: int
    """The number of its newest run; 0 before the first run."""
    restarts: int
    """The number of failures counted by its restart strategy."""
    next_start_ms: int | None
    """The time at which a RESTARTING job starts again; null for other jobs."""
    restart: str
    """Its restart strategy."""
    mode: Mode
    """Whether it runs in micro-batches or in real time."""
    checkpoint_interval_ms: int
    """How long an interval takes in real time; 0 in micro-batches."""
    bindings: dict[str, str]
    settings: dict[str, Any]
    progress: dict[str, Any] | None
    """The progress of its newest run; only in the response for a single job."""
    scaling: Scaling | None
    """Its automatic scaling; null without a policy."""


class Run(Resource):
    """A run of a job, and how it ended."""

    run: int
    """Its number, from 1."""
    host: str
    """The host of the manager that started it."""
    created_ms: int
    pid: int | None
    """The id of its driver process, once known."""
    ended_ms: int | None
    end_kind: str | None
    """How it ended: FINISHED, STOPPED, FAILED, REFUSED, HINDERED, KILLED or VOIDED; null until then."""
    exit_code: int | None
    why: str | None
    """The reason for its end."""


class Operation(Resource):
    """A request and its outcome. Poll it while its state is PENDING or RUNNING."""

    id: str
    kind: str
    job: str
    """The id of the job."""
    state: OperationState
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    """The outcome of a DONE operation."""
    error: str | None
    """The reason why the operation FAILED."""
    created_ms: int
    created_by: str
    ended_ms: int | None


class Log(Resource):
    """A part of the output of a run."""

    run: int
    """The number of the run; 0 if there is none."""
    text: str
    end: int
    """The offset of its end, in bytes. Pass it as `begin` to get the output after it."""


class Savepoint(Resource):
    """A savepoint that jobs can start from."""

    id: str
    job_name: str
    """The name of the job that it was taken of."""
    batch: int
    """The last micro-batch that it includes."""
    created_at: str | None
    uri: str


class SnapshotTable(Resource):
    """A table of a snapshot: a keyed state of a step, its timers, or state that the step has only once."""

    name: str
    step: str
    kind: str
    rows: int
    bytes: int


class SavepointDetails(Savepoint):
    """A savepoint with its contents."""

    key_groups: int
    rows: int
    bytes: int
    tables: tuple[SnapshotTable, ...]
    positions: dict[str, Any]
    """The position at which each stream continues."""
    used_by: tuple[str, ...]
    """The ids of unfinished jobs that started from it."""


class Submission(Changes):
    """A job to run: the id of a definition, and changes to its settings."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"definition": "rooms", "parallelism": 4, "restart": "none"}]}
    )

    definition: DefinitionId
    name: Text | None = Field(
        default=None, description="The name of the job. Default: the name in the definition."
    )
    from_savepoint: Id | None = Field(default=None, description="The id of a savepoint to start from.")
    continues: Id | None = Field(
        default=None,
        description="The id of an ended job whose checkpoint the new job takes over; not with from_savepoint.",
    )


def job_of(row: JobRow) -> Job:
    """Return the resource of a job, without its progress and last scaling decision."""
    policy = row.settings.get("scaling")
    waits = row.status is JobStatus.RESTARTING
    interval_ms = milliseconds(row.settings.get("checkpoint_interval", "0s"), "checkpoint_interval")
    values = msgspec.structs.asdict(row) | {
        "run": row.epoch,
        "restarts": row.history.total,
        "next_start_ms": row.since_ms + row.delay_ms if waits else None,
        "mode": mode_of(interval_ms),
        "checkpoint_interval_ms": interval_ms,
        "bindings": mask_bindings(row.settings),
        "settings": mask_settings(row.settings),
        "progress": None,
        "scaling": None if policy is None else Scaling(policy=policy, at_ms=None, decision=None),
    }
    return msgspec.convert(values, Job)


def add_last_decision(scaling: Scaling, path: Path) -> Scaling:
    """Return a scaling with the last decision, which the autoscaler writes to a file, if there is one."""
    try:
        made = msgspec.json.decode(path.read_bytes(), type=ScalingDecision)
    except FileNotFoundError:
        return scaling
    return dataclasses.replace(scaling, at_ms=made.at_ms, decision=msgspec.to_builtins(made.decision))


def run_of(row: RunRow) -> Run:
    """Return the resource of a run."""
    return msgspec.convert(msgspec.structs.asdict(row) | {"run": row.epoch}, Run)


def operation_of(row: OperationRow) -> Operation:
    """Return the resource of an operation."""
    return msgspec.convert(msgspec.structs.asdict(row) | {"job": row.job_id}, Operation)


def mask_bindings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the bindings in a job's settings, with secrets masked."""
    return {name: redact(uri) for name, uri in settings.get("bindings", {}).items()}


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other settings, with secrets masked, and all values of Spark settings, which may be credentials."""
    masked = {
        name: redact(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if name != "bindings"
    }
    return {**masked, "spark": dict.fromkeys(settings.get("spark", {}), "***")}
