"""Command gateways: where commands are handed in, and what became of them is told: a checkpoint, or a server's job."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock.bindings.secrets import redacted
from penstock.commands.command_catalog import CommandCatalog, read_command_catalog
from penstock.commands.command_sender import command_binding, find_waiting, send_command
from penstock.commands.command_target import check_known, parse_target
from penstock.commands.receipt_history import (
    CommandFilter,
    CommandHistory,
    NewReceipts,
    await_end,
    newest_stories,
    story_of,
)
from penstock.control.commands import Command
from penstock.control.receipts import FINAL, Receipt
from penstock.errors import CommandRefusedError

if TYPE_CHECKING:
    from penstock.client.http import Server

__all__ = ["CheckpointDesk", "CommandGateway", "Content", "ServerDesk"]

_SENT: Final = "SENT"
_POLL_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a command says, as it was given.

    `keys` is a JSON array. A command without an `id` gets `new_id`, which no other has.
    """

    kind: str
    target: str
    keys: str | None
    payload: msgspec.Raw
    id: str | None
    new_id: str
    issued_at: dt.datetime
    version: int | None
    effective_at: dt.datetime | None
    expires_at: dt.datetime | None


class CommandGateway(Protocol):
    """Where commands are handed in, and what became of them is told."""

    def send(self, content: Content) -> dict[str, Any]:
        """Send a command; gives what is told of it, with its `id`."""

    def await_final(
        self, command_id: str, timeout_s: float, on_receipt: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Wait for the final receipt of a command that was sent here; None when the time is over before."""

    def story(self, command_id: str) -> CommandHistory | None:
        """What became of a command; None when it waits to be read. Raises an error when nothing is known of it."""

    def stories(self, step: str | None, kind: str | None, most: int) -> list[CommandHistory]:
        """The newest stories, oldest first."""


class CheckpointDesk:
    """A checkpoint on this machine.

    Args:
        folder: the checkpoint.
        issued_by: who sends commands.
        commands: where its job reads commands, if that is not to be found in the checkpoint.
        awaits: whether receipts are to be waited for.

    """

    def __init__(
        self, folder: Path, issued_by: str = "", commands: str | None = None, *, awaits: bool = False
    ) -> None:
        self._folder: Final = folder
        self._issued_by: Final = issued_by
        self._commands: Final = commands
        self._awaits: Final = awaits
        self._new: NewReceipts | None = None
        self._look_back = False

    def send(self, content: Content) -> dict[str, Any]:
        """Write the command to where the job reads it."""
        entry = self._entry()
        binding = command_binding(entry, self._commands)
        command = Command(
            id=content.new_id if content.id is None else content.id,
            kind=content.kind,
            target=parse_target(content.target, content.keys, entry),
            version=content.version,
            issued_by=self._issued_by,
            issued_at=content.issued_at,
            effective_at=content.effective_at,
            expires_at=content.expires_at,
            payload=content.payload,
        )
        check_known(command, entry)
        # Made first, so that no receipt is missed between the two.
        self._new = NewReceipts(self._folder) if self._awaits else None
        # Only an id that was chosen can have receipts from before.
        self._look_back = content.id is not None
        send_command(command, binding)
        return {
            "id": command.id,
            "status": _SENT,
            "kind": command.kind,
            "target": str(command.target),
            "version": command.version,
            "issued_by": command.issued_by,
            "commands": redacted(binding.uri),
        }

    def await_final(
        self, command_id: str, timeout_s: float, on_receipt: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Read the receipts in the checkpoint as they come."""
        assert self._new is not None
        return await_end(self._new, command_id, timeout_s, on_receipt, look_back=self._look_back)

    def story(self, command_id: str) -> CommandHistory | None:
        """From the receipts, or from what waits."""
        entry = self._entry()
        story = story_of(self._folder, command_id)
        if story is None and find_waiting(command_id, entry, self._folder) is None:
            # What waited a moment ago may have its receipts by now.
            story = story_of(self._folder, command_id)
            if story is not None:
                return story
            looked = (
                f" What waits in {entry.commands} is not looked through." if "://" in entry.commands else ""
            )
            raise CommandRefusedError(
                f"The id {command_id!r} is unknown: no command with it has a receipt.{looked}"
            )
        return story

    def stories(self, step: str | None, kind: str | None, most: int) -> list[CommandHistory]:
        """From the receipts."""
        return newest_stories(self._folder, CommandFilter(self._entry(), step, kind), most)

    def _entry(self) -> CommandCatalog:
        return read_command_catalog(self._folder)


class ServerDesk:
    """A job of a server."""

    def __init__(self, server: Server, job_id: str) -> None:
        self._server: Final = server
        self._path: Final = f"/v1/jobs/{job_id}/commands"

    def send(self, content: Content) -> dict[str, Any]:
        """Let the server send it, in the name of who asks."""
        given = {
            "kind": content.kind,
            "target": content.target,
            "keys": None if content.keys is None else _array(content.keys),
            "payload": msgspec.json.decode(content.payload),
            "id": content.id,
            "version": content.version,
            "effective_at": None if content.effective_at is None else content.effective_at.isoformat(),
            "expires_at": None if content.expires_at is None else content.expires_at.isoformat(),
        }
        given = {name: value for name, value in given.items() if value is not None}
        sent: dict[str, Any] = self._server.change("POST", self._path, given)
        return sent

    def await_final(
        self, command_id: str, timeout_s: float, on_receipt: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Ask for its story until it is over."""
        deadline_s = time.monotonic() + timeout_s
        told = 0
        while True:
            told_story = self._server.patient_get(f"{self._path}/{command_id}")
            receipts = [_receipt(plain) for plain in told_story["receipts"]]
            for receipt in receipts[told:]:
                on_receipt(receipt)
            told = len(receipts)
            if receipts and receipts[-1].status in FINAL:
                return receipts[-1]
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(min(_POLL_S, max(0.0, deadline_s - time.monotonic())))

    def story(self, command_id: str) -> CommandHistory | None:
        """As the server tells it."""
        receipts = self._server.get(f"{self._path}/{command_id}")["receipts"]
        return CommandHistory(tuple(map(_receipt, receipts))) if receipts else None

    def stories(self, step: str | None, kind: str | None, most: int) -> list[CommandHistory]:
        """As the server tells them."""
        page = self._server.get(self._path, step=step, kind=kind, limit=min(most, 1000))
        return [CommandHistory(tuple(map(_receipt, told["receipts"]))) for told in page["items"]]


def _receipt(plain: dict[str, Any]) -> Receipt:
    """A receipt from its plain form."""
    details = plain["details"]
    text = "" if details is None else msgspec.json.encode(details).decode()
    return msgspec.convert({**plain, "details": text}, Receipt)


def _array(keys: str) -> Any:
    try:
        return msgspec.json.decode(keys)
    except msgspec.DecodeError as e:
        raise CommandRefusedError(f"--keys is no JSON: {e}. Write an array, such as '[1, 2]'.") from None
