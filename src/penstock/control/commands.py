"""Commands: requests to a running job, with a target, a version and an expiry time.

A command is sent as JSON or as the protobuf message `penstock.Command` of `control.proto`:

    {"id": "7f3c", "kind": "set", "target": {"step": "thermostat", "key": 5}, "version": 3, "issued_by": "ann",
     "expires_at": "2026-12-01T12:00:00Z", "payload": {"desired": 21.5}}

Without a target, it is for the whole job; with only a step, for the step; with `"all": true`, for every key of the
step.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "AT_ONCE",
    "COMMANDS",
    "DEFAULT_MAX_BYTES",
    "NOT_UNDERSTOOD",
    "Apply",
    "Command",
    "CommandError",
    "CommandFormat",
    "DumpRequest",
    "Scope",
    "Target",
    "short_reason",
]


Scope = Literal["key", "keys", "all", "step", "job"]
CommandFormat = Literal["json", "protobuf"]
Apply = Literal["at-once", "at-checkpoint"]

AT_ONCE: Final = "at-once"
"""The default of `Command.apply`."""

COMMANDS: Final = "commands"
"""The name of the stream of commands that every job with a keyed step has."""

DEFAULT_MAX_BYTES: Final = 1 << 20
"""The default limit of the size of a command."""

NOT_UNDERSTOOD: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""The exceptions that decoding untrusted data raises: more than only the documented ones."""


class CommandError(Exception):
    """A command that cannot be decoded. `id` is its id, if that could be read."""

    def __init__(self, reason: str, command_id: str = "") -> None:
        super().__init__(reason)
        self.id = command_id


class Target(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The target of a command."""

    step: str = ""
    key: Any = None
    keys: Sequence[Any] | None = None
    all: bool = False

    @property
    def scope(self) -> Scope:
        """The kind of target."""
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
    """The payload of a command `dump-state`: the place of the dump. `{batch}` in it stands for the micro-batch."""

    to: str
    format: Literal["csv", "jsonl", "parquet"] = "csv"

    def place(self, batch: int) -> str:
        """Return the place of the dump of a micro-batch."""
        return self.to.replace("{batch}", str(batch))


class Command(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """One command.

    `version` orders the commands of one kind for one target: a version lower than the applied one is refused.
    `effective_at` is an event time; without it, the command takes effect at the cut of its micro-batch. In real time,
    `apply` says when that is: in each slot when the command arrives, or in all slots at the end of the interval.
    """

    id: str
    kind: str
    target: Target = msgspec.field(default_factory=Target)
    version: int | None = None
    issued_by: str = ""
    issued_at: dt.datetime | None = None
    effective_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    apply: Apply = "at-once"
    payload: msgspec.Raw = msgspec.Raw(b"null")


def short_reason(error: BaseException) -> str:
    """Return the message of an error as one line of text that can be written anywhere."""
    text = str(error) if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {error}"
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())[:500]
