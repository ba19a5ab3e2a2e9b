"""Admitted commands: read and validated, on their way to the slots of the steps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from penstock.control.commands import AT_ONCE, Command, Target
from penstock.control.receipts import RecordPosition

__all__ = [
    "AdmittedCommand",
    "CommandIdNotice",
    "PlainSet",
    "PlainSets",
    "SlotCommand",
    "commands_for_slot",
    "decode_commands",
    "encode_commands",
    "keys_named",
]


class AdmittedCommand(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="_", tag="o", gc=False):
    """A command with its position. `refusal` is the reason if it is refused; `key_groups` are those of its keys.

    `judge` is the step that remembers its id if it is refused.
    """

    place: RecordPosition
    command: Command
    judge: str = ""
    refusal: str = ""
    key_groups: Sequence[int] = ()


class CommandIdNotice(msgspec.Struct, frozen=True, tag_field="_", tag="g", gc=False):
    """The id of a command that other slots execute, so that all slots know the same ids."""

    place: RecordPosition
    judge: str
    id: str


class PlainSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command `set` to a single key, without version, expiry, `effective_at` and `apply`."""

    offset: int
    id: str
    key: Any
    key_group: int
    payload: msgspec.Raw
    issued_by: str
    issued_at: dt.datetime | None


class PlainSets(msgspec.Struct, frozen=True, tag_field="_", tag="s", gc=False):
    """Consecutive plain sets to one step. Those that other slots execute are present as ids.

    Thousands may arrive in a second, so they are sent and executed together. `place` is the position of the first.
    """

    place: RecordPosition
    step: str
    commands: list[PlainSet | str]

    def admit(self, one: PlainSet) -> AdmittedCommand:
        """Return one of the commands, without the others."""
        command = Command(
            id=one.id,
            kind="set",
            target=Target(self.step, one.key),
            issued_by=one.issued_by,
            issued_at=one.issued_at,
            payload=one.payload,
        )
        place = RecordPosition(self.place.stream, self.place.partition, one.offset)
        return AdmittedCommand(place, command, self.step, "", [one.key_group])

    def separate(self) -> list[AdmittedCommand | CommandIdNotice]:
        """Return the same commands one by one."""
        return [
            CommandIdNotice(self.place, self.step, one) if isinstance(one, str) else self.admit(one)
            for one in self.commands
        ]


SlotCommand: TypeAlias = AdmittedCommand | CommandIdNotice | PlainSets
"""A command, or several, that a slot executes or whose ids it notes."""


def commands_for_slot(
    commands: Iterable[AdmittedCommand], own: frozenset[int], concerns: Callable[[AdmittedCommand], bool]
) -> list[SlotCommand]:
    """Return the commands, sorted by position, in the form for the slot with the key groups `own`.

    The slot gets plain sets to its own keys, other commands that `concerns` selects, and the ids of the rest.
    """
    found: list[SlotCommand] = []
    sets: list[PlainSet | str] = []
    step = ""
    for admitted in commands:
        command = admitted.command
        if admitted.refusal or not _is_plain(command):
            found.append(
                admitted
                if concerns(admitted)
                else CommandIdNotice(admitted.place, admitted.judge, command.id)
            )
            step = ""
            continue
        if command.target.step != step:
            step, sets = command.target.step, []
            found.append(PlainSets(admitted.place, step, sets))
        (group,) = admitted.key_groups
        if group in own:
            offset, key = admitted.place.offset, command.target.key
            one = PlainSet(
                offset, command.id, key, group, command.payload, command.issued_by, command.issued_at
            )
            sets.append(one)
        else:
            sets.append(command.id)
    return found


def keys_named(commands: Iterable[SlotCommand]) -> tuple[list[Any], list[int]]:
    """Return the keys that commands name, as in their JSON, and the key group of each."""
    named: list[Any] = []
    groups: list[int] = []
    for admitted in commands:
        if isinstance(admitted, PlainSets):
            own = [one for one in admitted.commands if isinstance(one, PlainSet)]
            named += [one.key for one in own]
            groups += [one.key_group for one in own]
            continue
        if isinstance(admitted, CommandIdNotice) or admitted.refusal:
            continue
        target = admitted.command.target
        if target.key is not None:
            named.append(target.key)
        elif target.keys is not None:
            named += target.keys
        else:
            continue
        groups += admitted.key_groups
    return named, groups


def _is_plain(command: Command) -> bool:
    return (
        command.kind == "set"
        and command.target.key is not None
        and command.version is None
        and command.effective_at is None
        and command.expires_at is None
        and command.apply == AT_ONCE
    )


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[SlotCommand])


def encode_commands(commands: Sequence[SlotCommand]) -> bytes:
    """Encode commands as JSON, since their payloads are JSON."""
    return _encoder.encode(commands)


def decode_commands(data: bytes) -> list[SlotCommand]:
    """Decode commands from `encode_commands`."""
    return _decoder.decode(data)
