"""Commands: what an operator wants a running job to do, to whom, in which version and until when.

A command travels as JSON or as the protobuf message `penstock.Command` of `control.proto`:

    {"id": "7f3c", "kind": "set", "target": {"step": "thermostat", "key": 5}, "version": 3, "issued_by": "ann",
     "expires_at": "2026-12-01T12:00:00Z", "payload": {"desired": 21.5}}

Without a target it is for the whole job; with a step only, for the step; with `"all": true`, for every key of the step.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "COMMANDS",
    "DEFAULT_MOST_BYTES",
    "NOT_UNDERSTOOD",
    "Command",
    "CommandError",
    "CommandFormat",
    "DumpRequest",
    "Scope",
    "Target",
    "check",
    "decode_command",
    "in_short",
]

Scope = Literal["key", "keys", "all", "step", "job"]
CommandFormat = Literal["json", "protobuf"]

COMMANDS: Final = "commands"
"""The name of the stream of commands that every job with a keyed step has."""

DEFAULT_MOST_BYTES: Final = 1 << 20
"""The largest command that is taken unless another limit is set."""

NOT_UNDERSTOOD: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding raises for data that somebody sent: not only what it is meant to raise."""

_MOST_ID_BYTES: Final = 128
# So many characters of an id that is too long are told.
_SHOWN: Final = 64
_TIMES: Final = ("issued_at", "effective_at", "expires_at")


class CommandError(Exception):
    """A command that cannot be understood. `id` is its id, when that much could be read."""

    def __init__(self, reason: str, command_id: str = "") -> None:
        super().__init__(reason)
        self.id = command_id


class Target(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Whom a command is for."""

    step: str = ""
    key: Any = None
    keys: Sequence[Any] | None = None
    all: bool = False

    @property
    def scope(self) -> Scope:
        """How far it reaches."""
        if not self.step:
            return "job"
        if self.key is not None:
            return "key"
        if self.keys is not None:
            return "keys"
        return "all" if self.all else "step"

    def __str__(self) -> str:
        if not self.step:
            return "*"
        if self.key is not None:
            return f"{self.step}/{self.key}"
        if self.keys is not None:
            return f"{self.step}/{','.join(map(str, self.keys))}"
        return f"{self.step}/*" if self.all else self.step


class DumpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a command `dump-state`: where the dump goes, in which `{batch}` stands for the micro-batch."""

    to: str
    format: Literal["csv", "jsonl", "parquet"] = "csv"

    def place(self, batch: int) -> str:
        """Where the dump of a micro-batch goes."""
        return self.to.replace("{batch}", str(batch))


class Command(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """One command.

    `version` orders the commands of one kind for one target: a lower one than applied is refused. `effective_at` is an
    event time; without it the command takes effect at the cut of its micro-batch.
    """

    id: str
    kind: str
    target: Target = msgspec.field(default_factory=Target)
    version: int | None = None
    issued_by: str = ""
    issued_at: dt.datetime | None = None
    effective_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True)
class _Id:
    """The part of a broken envelope that tells whom to answer."""

    id: str = ""


_decoder: Final = msgspec.json.Decoder(Command)
_id_decoder: Final = msgspec.json.Decoder(_Id)


def decode_command(
    data: bytes, form: CommandFormat = "json", most_bytes: int = DEFAULT_MOST_BYTES
) -> Command:
    """The command of an envelope. Raises CommandError with the reason, and with the id when it has one."""
    if len(data) > most_bytes:
        command_id = _id_of(data) if form == "json" else ""
        raise CommandError(f"the command has {len(data)} bytes; at most {most_bytes} are taken", command_id)
    if form == "protobuf":
        from penstock.control.protobuf import command_of_message

        command = command_of_message(data)
    else:
        try:
            command = _decoder.decode(data)
        except NOT_UNDERSTOOD as e:
            raise CommandError(in_short(e), _id_of(data)) from None
    check(command)
    return command


def _id_of(data: bytes) -> str:
    try:
        found = _id_decoder.decode(data).id
        return "" if _is_too_long(found) else found
    except NOT_UNDERSTOOD:
        return ""


def _is_too_long(command_id: str) -> bool:
    if len(command_id) > _MOST_ID_BYTES:
        return True
    return not command_id.isascii() and len(command_id.encode()) > _MOST_ID_BYTES


def in_short(error: BaseException) -> str:
    """What is wrong, in a line of text that can be written anywhere."""
    said = str(error) if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {error}"
    return " ".join(said.encode("utf-8", "backslashreplace").decode().split())[:500]


def check(command: Command) -> None:
    """Raise CommandError for what the types alone do not forbid."""
    target = command.target
    reason = ""
    if not command.id:
        reason = "the id is empty"
    elif _is_too_long(command.id):
        # Without an id it has its receipt under its place. A part of the id may be that of another command.
        raise CommandError(
            f"the id is longer than {_MOST_ID_BYTES} bytes; it begins with {command.id[:_SHOWN]!r}"
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
            raise CommandError(f"{name} lies outside of the years 1 to 9999", command.id) from None
