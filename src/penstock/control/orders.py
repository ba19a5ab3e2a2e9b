"""Orders: commands that were read and checked, on their way to the slots of the steps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from penstock.control.commands import Command, Target
from penstock.control.receipts import RecordPosition

__all__ = [
    "AdmittedCommand",
    "CommandIdNotice",
    "PlainSet",
    "PlainSets",
    "Steered",
    "decode_orders",
    "encode_orders",
    "seen_by_slot",
]


class AdmittedCommand(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="_", tag="o", gc=False):
    """A command with its place. `refusal` says why it must not be carried out; `key_groups` are those of its keys.

    `judge` is the step that keeps its id when it is refused.
    """

    place: RecordPosition
    command: Command
    judge: str = ""
    refusal: str = ""
    key_groups: Sequence[int] = ()


class CommandIdNotice(msgspec.Struct, frozen=True, tag_field="_", tag="g", gc=False):
    """What a slot sees of a command that others carry out: its id, so that all slots know the same ids."""

    place: RecordPosition
    judge: str
    id: str


class PlainSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command `set` to a single key on which neither a version nor a time decides."""

    offset: int
    id: str
    key: Any
    key_group: int
    payload: msgspec.Raw
    issued_by: str
    issued_at: dt.datetime | None


class PlainSets(msgspec.Struct, frozen=True, tag_field="_", tag="s", gc=False):
    """Such commands to one step that follow each other in their stream; of those that other slots carry out, the ids.

    Thousands of them may come in a second, which is why they travel and are carried out together. `place` is that of
    the first.
    """

    place: RecordPosition
    step: str
    commands: list[PlainSet | str]

    def order(self, one: PlainSet) -> AdmittedCommand:
        """The order of one of the commands."""
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

    def orders(self) -> list[AdmittedCommand | CommandIdNotice]:
        """What the slot would have been given one by one."""
        return [
            CommandIdNotice(self.place, self.step, one) if isinstance(one, str) else self.order(one)
            for one in self.commands
        ]


Steered: TypeAlias = AdmittedCommand | CommandIdNotice | PlainSets
"""What a slot is given to carry out or to take note of."""


def seen_by_slot(
    orders: Iterable[AdmittedCommand], own: frozenset[int], concerns: Callable[[AdmittedCommand], bool]
) -> list[Steered]:
    """Orders in the order of their places as the slot with the key groups `own` sees them.

    Whole are those that the slot has to do with: of plain sets those to its own keys, of others what `concerns` says.
    """
    found: list[Steered] = []
    sets: list[PlainSet | str] = []
    step = ""
    for order in orders:
        command = order.command
        if order.refusal or not _is_plain(command):
            found.append(order if concerns(order) else CommandIdNotice(order.place, order.judge, command.id))
            step = ""
            continue
        if command.target.step != step:
            step, sets = command.target.step, []
            found.append(PlainSets(order.place, step, sets))
        (group,) = order.key_groups
        if group in own:
            offset, key = order.place.offset, command.target.key
            one = PlainSet(
                offset, command.id, key, group, command.payload, command.issued_by, command.issued_at
            )
            sets.append(one)
        else:
            sets.append(command.id)
    return found


def _is_plain(command: Command) -> bool:
    return (
        command.kind == "set"
        and command.target.key is not None
        and command.version is None
        and command.effective_at is None
        and command.expires_at is None
    )


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[Steered])


def encode_orders(orders: Sequence[Steered]) -> bytes:
    """Orders as bytes, in JSON because the payloads are."""
    return _encoder.encode(orders)


def decode_orders(data: bytes) -> list[Steered]:
    """The orders that `encode_orders` was given."""
    return _decoder.decode(data)
