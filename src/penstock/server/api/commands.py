"""Routes for commands: send a command to a job, and read its receipts."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from typing import Annotated, Any, Final

import msgspec
from fastapi import Path, Query, Response

from penstock.commands.command_catalog import read_command_catalog
from penstock.commands.command_sender import find_waiting
from penstock.commands.command_target import check_known, parse_target
from penstock.commands.job_receipts import plain
from penstock.commands.receipt_history import (
    CommandFilter,
    CommandHistory,
    find_history,
    find_newest_histories,
)
from penstock.control.commands import Command as ControlCommand
from penstock.errors import CommandRefusedError, UnknownIdError
from penstock.server.api.access import Role
from penstock.server.api.changes import IdempotencyKey
from penstock.server.api.context import Service
from penstock.server.api.models import Command, CommandReceipts, Page, SentCommand
from penstock.server.api.routes import Asker, JobId, Limit, needs, new_router
from penstock.server.service.job_resources import ID_PATTERN
from penstock.server.service.service import JobService

__all__ = ["issue", "router"]

_WRITES_FILES: Final = frozenset({"dump-state"})
"""Kinds of commands that name a place to write to, which REST clients must not choose."""

router = new_router("control")


@router.post(
    "/jobs/{job_id}/commands", status_code=202, summary="Send a command", openapi_extra=needs(Role.OPERATOR)
)
def send(
    job_id: JobId,
    command: Command,
    service: Service,
    asker: Asker,
    response: Response,
    key: IdempotencyKey = None,
) -> SentCommand:
    """Send a command to a job, whether or not the job is running. Get the command by its id to read its receipts.

    If the command has no id, the id is derived from the Idempotency-Key, so that the job applies a repeated command
    only once.
    """
    sent = issue(service, job_id, command, asker.name, key)
    response.headers["Location"] = f"/v1/jobs/{job_id}/commands/{sent.id}"
    return SentCommand(
        id=sent.id, kind=sent.kind, target=str(sent.target), version=sent.version, issued_by=sent.issued_by
    )


def issue(
    service: JobService, job_id: str, command: Command, who: str, key: str | None = None
) -> ControlCommand:
    """Send a command on behalf of a user. Raises CommandRefusedError if the job does not take it."""
    if command.kind in _WRITES_FILES:
        raise CommandRefusedError(
            f"The command {command.kind} names a place to write to, which REST does not allow. Send it with "
            "penstock control send."
        )
    checkpoint = service.checkpoint(job_id)
    entry = read_command_catalog(checkpoint)
    keys = None if command.keys is None else _json(command.keys, "keys")
    sent = ControlCommand(
        id=command.id or _id_of(job_id, who, key),
        kind=command.kind,
        target=parse_target(command.target, keys, entry),
        version=command.version,
        issued_by=who,
        issued_at=dt.datetime.now(dt.UTC),
        effective_at=command.effective_at,
        expires_at=command.expires_at,
        apply=command.apply,
        payload=msgspec.Raw(_json(command.payload, "payload").encode()),
    )
    check_known(sent, entry)
    service.send_command(job_id, sent, entry)
    return sent


@router.get("/jobs/{job_id}/commands", summary="List commands", openapi_extra=needs(Role.VIEWER))
def list_commands(
    job_id: JobId,
    service: Service,
    step: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Return only commands to this step.")
    ] = None,
    kind: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Return only commands of this kind.")
    ] = None,
    limit: Limit = 20,
) -> Page[CommandReceipts]:
    """List the newest commands that the job has read, newest last. There are no further pages."""
    checkpoint = service.checkpoint(job_id)
    wanted = CommandFilter(read_command_catalog(checkpoint), step, kind)
    return Page(items=[_receipts_of(history) for history in find_newest_histories(checkpoint, wanted, limit)])


@router.get("/jobs/{job_id}/commands/{command_id}", summary="Get a command", openapi_extra=needs(Role.VIEWER))
def get_command(
    job_id: JobId,
    command_id: Annotated[str, Path(pattern=ID_PATTERN, description="The id of a command.")],
    service: Service,
) -> CommandReceipts:
    """Return the status of a command and all its receipts. The status is SENT until the job has read the command."""
    checkpoint = service.checkpoint(job_id)
    history = find_history(checkpoint, command_id)
    if history is not None:
        return _receipts_of(history)
    waiting = find_waiting(command_id, read_command_catalog(checkpoint), checkpoint)
    if waiting is None and (history := find_history(checkpoint, command_id)) is not None:
        # The job may have read the command between the two searches.
        return _receipts_of(history)
    if waiting is None:
        raise UnknownIdError(
            f"No command {command_id!r} has a receipt from the job {job_id}, or is waiting for it."
        )
    return CommandReceipts(
        id=waiting.id,
        kind=waiting.kind,
        target=str(waiting.target),
        version=waiting.version,
        issued_by=waiting.issued_by,
        status="SENT",
        receipts=[],
    )


def _receipts_of(history: CommandHistory) -> CommandReceipts:
    last = history.last
    return CommandReceipts.model_validate(
        {
            "id": last.id,
            "kind": last.kind,
            "target": last.target,
            "version": last.version,
            "issued_by": last.issued_by,
            "status": last.status,
            "receipts": [plain(receipt) for receipt in history.receipts],
        }
    )


def _id_of(job_id: str, who: str, key: str | None) -> str:
    if key is None:
        return uuid.uuid4().hex
    return hashlib.sha256(json.dumps([job_id, who, key]).encode()).hexdigest()[:32]


def _json(value: Any, name: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as e:
        raise CommandRefusedError(f"{name} cannot be written as JSON: {e}.") from None
