"""Command decoder: decode bytes into a validated command, or into an error with the command's id."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.control.commands import (
    DEFAULT_MAX_BYTES,
    NOT_UNDERSTOOD,
    Command,
    CommandError,
    CommandFormat,
    short_reason,
)

__all__ = ["check", "decode_command"]

_MAX_ID_BYTES: Final = 128
# The error for an id that is too long shows this many characters of it.
_SHOWN: Final = 64
_TIMES: Final = ("issued_at", "effective_at", "expires_at")


@dataclass(frozen=True)
class _Id:
    """The part of an invalid envelope that identifies the command."""

    id: str = ""


_decoder: Final = msgspec.json.Decoder(Command)
_id_decoder: Final = msgspec.json.Decoder(_Id)


def decode_command(data: bytes, form: CommandFormat = "json", max_bytes: int = DEFAULT_MAX_BYTES) -> Command:
    """Decode and check the command of an envelope. Raises CommandError with the reason, and with the id if known."""
    if len(data) > max_bytes:
        command_id = _id_of(data) if form == "json" else ""
        raise CommandError(f"the command has {len(data)} bytes; at most {max_bytes} are taken", command_id)
    if form == "protobuf":
        from penstock.control.command_messages import command_of_message

        command = command_of_message(data)
    else:
        try:
            command = _decoder.decode(data)
        except NOT_UNDERSTOOD as e:
            raise CommandError(short_reason(e), _id_of(data)) from None
    check(command)
    return command


def _id_of(data: bytes) -> str:
    try:
        found = _id_decoder.decode(data).id
        return "" if _is_too_long(found) else found
    except NOT_UNDERSTOOD:
        return ""


def check(command: Command) -> None:
    """Raise CommandError if a command is invalid in a way that its types allow."""
    target = command.target
    reason = ""
    if not command.id:
        reason = "the id is empty"
    elif _is_too_long(command.id):
        # Without an id, the receipt has the command's position. A part of the id may be the id of another command.
        raise CommandError(
            f"the id is longer than {_MAX_ID_BYTES} bytes; it begins with {command.id[:_SHOWN]!r}"
        )
    elif not command.kind:
        reason = "the kind is empty"
    elif command.version is not None and not 0 <= command.version < 1 << 63:
        reason = "the version is negative or has more than 63 bits"
    elif (target.key is not None) + (target.keys is not None) + target.all > 1:
        reason = "the target has more than one of key, keys and all"
    elif not target.step and (target.key is not None or target.keys is not None or target.all):
        reason = "the target names keys but no step"
    elif target.keys is not None and not target.keys:
        reason = "the target has an empty list of keys"
    if reason:
        raise CommandError(reason, command.id)
    if command.issued_at or command.effective_at or command.expires_at:
        _check_times(command)


def _check_times(command: Command) -> None:
    for name in _TIMES:
        at = getattr(command, name)
        if at is None:
            continue
        if at.tzinfo is None:
            raise CommandError(f"{name} has no time zone", command.id)
        try:
            at.astimezone(dt.UTC)
        except OverflowError:
            raise CommandError(f"{name} is outside the years 1 to 9999", command.id) from None


def _is_too_long(command_id: str) -> bool:
    if len(command_id) > _MAX_ID_BYTES:
        return True
    return not command_id.isascii() and len(command_id.encode()) > _MAX_ID_BYTES
