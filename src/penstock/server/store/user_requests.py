"""Requests: the requests of users become operations and events, within transactions of the store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa

from penstock.errors import IdempotencyError
from penstock.server.lifecycle.decisions import End, decide_outcome
from penstock.server.store.database import events, operations
from penstock.server.store.row_types import JobRow, OperationKind, OperationRow

__all__ = [
    "MANAGER",
    "UNFINISHED",
    "Asked",
    "add_event",
    "add_operation",
    "as_id",
    "end_operation",
    "find_operations",
    "find_same_request",
    "new_operation_id",
    "rows_of",
    "settle",
]

MANAGER: Final = "manager"
"""The name in events for actions of the manager that no user has requested."""

UNFINISHED: Final = ("PENDING", "RUNNING")

_RESCALE_DETAILS: Final = ("before", "after", "downtime_s")

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Asked:
    """A request: the user, the kind of operation, and the key that identifies a repeated request."""

    who: str
    kind: OperationKind
    arguments: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None

    def digest(self, job_id: str | None) -> str:
        """Return a digest of the request. Requests with the same key must have the same digest."""
        return hashlib.sha256(
            msgspec.json.encode((self.kind, job_id, self.arguments), order="deterministic")
        ).hexdigest()


def new_operation_id() -> str:
    """Return an id for a new operation."""
    return f"op-{uuid.uuid4().hex[:16]}"


def as_id(text: str) -> str:
    """Return text as an id for a query. PostgreSQL refuses NUL, which no id contains, but which a client may send."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def find_same_request(connection: sa.Connection, asked: Asked, job_id: str | None) -> OperationRow | None:
    """Return the operation of an earlier request with the same key. Raises IdempotencyError if that request differs."""
    if asked.key is None:
        return None
    mine = (operations.c.created_by == asked.who, operations.c.idempotency_key == asked.key)
    for found in find_operations(connection, *mine):
        if found.request_digest != asked.digest(job_id):
            raise IdempotencyError(
                f"The idempotency key {asked.key!r} was used for another request (operation {found.id}). Use a new "
                "key for each request."
            )
        return found
    return None


def add_operation(
    connection: sa.Connection,
    now_ms: int,
    job_id: str,
    asked: Asked,
    *,
    operation_id: str | None = None,
    result: dict[str, Any] | None = None,
) -> OperationRow:
    """Add an operation and its event. It is PENDING, or DONE if it has a result."""
    added = OperationRow(
        id=operation_id or new_operation_id(),
        kind=asked.kind,
        job_id=job_id,
        arguments=dict(asked.arguments),
        state="PENDING" if result is None else "DONE",
        result=result,
        error=None,
        idempotency_key=asked.key,
        # The id of a submitted job is new, and not part of the request.
        request_digest=asked.digest(None if asked.kind == "submit" else job_id),
        created_ms=now_ms,
        created_by=asked.who,
        ended_ms=None if result is None else now_ms,
    )
    connection.execute(operations.insert().values(msgspec.to_builtins(added)))
    detail = {"operation": added.id, **added.arguments}
    add_event(connection, now_ms, job_id, asked.who, f"asked for: {asked.kind}", detail)
    return added


def end_operation(
    connection: sa.Connection,
    now_ms: int,
    operation: OperationRow,
    *,
    result: dict[str, Any] | None = None,
    error: str | None = None,
) -> OperationRow:
    """End an operation with a result or an error, and return it. An operation that has ended stays unchanged."""
    state = "DONE" if error is None else "FAILED"
    values = {"state": state, "result": result, "error": error, "ended_ms": now_ms}
    mine = (operations.c.id == operation.id, operations.c.state.in_(UNFINISHED))
    if connection.execute(operations.update().where(*mine).values(values)).rowcount == 1:
        detail = {"operation": operation.id} | ({"error": error} if error else {})
        if operation.kind == "rescale":
            # The downtime is still needed long after the operation is deleted.
            detail |= {name: (result or {})[name] for name in _RESCALE_DETAILS if name in (result or {})}
        add_event(
            connection, now_ms, operation.job_id, MANAGER, f"{operation.kind} is {state.lower()}", detail
        )
    return find_operations(connection, operations.c.id == operation.id)[0]


def settle(connection: sa.Connection, now_ms: int, job: JobRow, end: End | None) -> None:
    """End the operations that are decided by the new status of a job. `end` is the end of its run, if it has ended."""
    needs_driver = job.stop is not None and job.stop.needs_driver
    done = not needs_driver or (end is not None and end.stop_done)
    mine = (operations.c.job_id == job.id, operations.c.state.in_(UNFINISHED))
    for operation in find_operations(connection, *mine):
        outcome = decide_outcome(operation.kind, job.status, stop_done=done)
        if outcome is None:
            continue
        answer = end if operation.kind == "stop" else None
        ok, error = outcome
        if ok and not (answer is not None and answer.stop_error):
            end_operation(connection, now_ms, operation, result=dict(answer.details) if answer else {})
        else:
            end_operation(connection, now_ms, operation, error=error or (answer.stop_error if answer else ""))


def add_event(
    connection: sa.Connection, now_ms: int, job_id: str | None, who: str, what: str, detail: dict[str, Any]
) -> None:
    """Record an event: who did what."""
    row = {"at_ms": now_ms, "job_id": job_id, "who": who, "what": what, "detail": detail}
    connection.execute(events.insert().values(row))


def find_operations(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[OperationRow]:
    """Return the operations that meet all conditions, oldest first."""
    query = sa.select(operations).where(*conditions).order_by(operations.c.created_ms, operations.c.id)
    return rows_of(connection.execute(query), OperationRow)


def rows_of(result: sa.CursorResult[Any], kind: type[_Row]) -> list[_Row]:
    """Convert rows to a type whose fields are the columns."""
    # SQLAlchemy has its own string type for names, which msgspec does not accept.
    return [
        msgspec.convert({str(name): value for name, value in row.items()}, kind) for row in result.mappings()
    ]
