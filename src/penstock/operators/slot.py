"""Slots: a task's share of a step, what it keeps once for the step, and how it tells of commands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.control.orders import Order
from penstock.control.receipts import Outcome, Report
from penstock.control.register import merged_registers
from penstock.operators.blocks import DeadLetter
from penstock.operators.reasons import reason_of
from penstock.operators.watermarks import Progress, merged_progress

__all__ = [
    "Header",
    "Slot",
    "dead_letter_of",
    "letter_of",
    "merged",
    "report_of",
]


class Header(msgspec.Struct):
    """What a slot keeps once for a step, beside the tables of its key groups.

    `unions` are those of the step's union list states. Data that waits because the step is paused is stored in so many
    parts, of so many bytes together. `progress` is what is known of event time.
    """

    register: bytes | None = None
    shared: bytes | None = None
    standing: bytes = b""
    paused: bool = False
    cache_generation: int = 0
    held_bytes: int = 0
    held_parts: int = 0
    unions: bytes | None = None
    progress: Progress | None = None

    @classmethod
    def of(cls, stored: bytes | None) -> Header:
        """From the stored form."""
        return cls() if stored is None else msgspec.msgpack.decode(stored, type=cls)

    def dump(self) -> bytes | None:
        """The stored form; None when there is nothing to keep."""
        return None if self == Header() else msgspec.msgpack.encode(self)


def held_name(part: int) -> str:
    """The name of a stored part of the data that waits for a paused step: what one micro-batch brought."""
    return f"held/{part}"


def merged(headers: Sequence[Header]) -> Header:
    """What the slots of a step keep, as one. All keep the same, but for the versions of single keys and held data.

    Unions are made anew where the state is restored.
    """
    if not headers:
        return Header()
    registers = [header.register for header in headers if header.register is not None]
    return msgspec.structs.replace(
        headers[0],
        register=merged_registers(registers) if registers else None,
        cache_generation=max(header.cache_generation for header in headers),
        unions=None,
        held_bytes=0,
        held_parts=0,
        progress=merged_progress([header.progress for header in headers]),
    )


def report_of(order: Order, outcome: Outcome, reason: str = "", **more: Any) -> Report:
    """A report on an order."""
    command = order.command
    return Report(
        order.place,
        command.id,
        command.kind,
        str(command.target),
        command.version,
        command.issued_by,
        outcome,
        reason,
        **more,
    )


def dead_letter_of(order: Order, error: Exception, step: str) -> DeadLetter:
    """The dead letter of a command whose handler raised."""
    return letter_of(order, reason_of(error), step)


def letter_of(order: Order, reason: str, step: str) -> DeadLetter:
    """The dead letter of a command, or of what its handler has emitted."""
    place = order.place
    raw = msgspec.json.encode(order.command)
    return DeadLetter(reason, place.stream, step, place.partition, place.offset, raw)


@dataclass(frozen=True)
class Slot:
    """A task's share of the key groups of a step; `first` tells that it is the first of them."""

    key_groups: Sequence[int]
    first: bool

    @functools.cached_property
    def own(self) -> frozenset[int]:
        """The key groups, to look them up."""
        return frozenset(self.key_groups)
