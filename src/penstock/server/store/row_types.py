"""Row types: rows of the store as typed values. Times are milliseconds since 1970, in UTC."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.checkpoints.stored_checkpoint import is_stored, working_folder
from penstock.server.lifecycle.decisions import JobFacts
from penstock.server.lifecycle.restarts import RestartHistory, parse_strategy
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.resource import Resource

__all__ = [
    "Event",
    "JobRow",
    "NewJob",
    "OperationKind",
    "OperationRow",
    "OperationState",
    "RunRow",
    "Stop",
]

OperationKind: TypeAlias = Literal[
    "submit", "cancel", "stop", "pause", "resume", "savepoint", "rescale", "dump"
]
OperationState: TypeAlias = Literal["PENDING", "RUNNING", "DONE", "FAILED"]


class Stop(msgspec.Struct, frozen=True):
    """How to stop a job: for which operation, with which savepoint (id and `uri`), if any, and whether to drain it."""

    operation: str
    savepoint: str | None = None
    uri: str | None = None
    drain: bool = False

    @property
    def needs_driver(self) -> bool:
        """Whether only a running job can be stopped like this."""
        return self.savepoint is not None or self.drain


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit."""

    id: str
    name: str
    definition: str
    settings: dict[str, Any]
    checkpoint: str
    restart: str


class JobRow(NewJob, frozen=True, kw_only=True):
    """A job in the store. `checkpoint` is a folder, or a URI on an object store."""

    created_ms: int
    created_by: str
    desired: Desired
    stop: Stop | None
    status: JobStatus
    reason: str
    since_ms: int
    delay_ms: int
    signalled_ms: int | None
    history: RestartHistory
    epoch: int
    version: int

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint on this machine."""
        return working_folder(self.checkpoint) if is_stored(self.checkpoint) else Path(self.checkpoint)

    @property
    def facts(self) -> JobFacts:
        """The facts about the job on which a decision is based."""
        return JobFacts(
            id=self.id,
            status=self.status,
            desired=self.desired,
            strategy=parse_strategy(self.restart),
            history=self.history,
            since_ms=self.since_ms,
            delay_ms=self.delay_ms,
            signalled_ms=self.signalled_ms,
            stop_needs_driver=self.stop is not None and self.stop.needs_driver,
        )


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job: its process, identified by its id and its start in ticks since a boot, and its end."""

    job_id: str
    epoch: int
    host: str
    created_ms: int
    pid: int | None
    started_ticks: int | None
    boot: str | None
    ended_ms: int | None
    end_kind: str | None
    exit_code: int | None
    why: str | None


class OperationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a user, and its outcome."""

    id: str
    kind: OperationKind
    job_id: str
    arguments: dict[str, Any]
    state: OperationState
    result: dict[str, Any] | None
    error: str | None
    idempotency_key: str | None
    request_digest: str
    created_ms: int
    created_by: str
    ended_ms: int | None


class Event(Resource):
    """An event of the audit log: who did what to which job, and when."""

    id: int
    at_ms: int
    job_id: str | None
    """The id of the job; null for an event of no job."""
    who: str
    """The user, or `manager` or `autoscaler`."""
    what: str
    """The kind of event, such as `status` or `asked for: pause`."""
    detail: dict[str, Any]
