"""Slots: a task's share of a step, what it keeps once for the step, and how it tells of commands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.control.admitted_commands import AdmittedCommand
from penstock.control.receipts import Outcome, Report
from penstock.control.register import Register, merged_registers
from penstock.operators.error_reasons import reason_of
from penstock.operators.record_blocks import DeadLetter
from penstock.operators.watermarks import Progress, merge_progress
from penstock.state.slot_tables import SlotTables

__all__ = [
    "REGISTER",
    "SHARED",
    "STANDING",
    "UNIONS",
    "Header",
    "Slot",
    "SlotHeader",
    "dead_letter_of",
    "header_of",
    "held_name",
    "letter_of",
    "merged",
    "put_header",
    "register_of",
    "report_of",
    "store_register",
    "whole_part",
]


# What a slot keeps once for a step and stores when it changes, beside the small header.
REGISTER: Final = "register"
SHARED: Final = "shared"
STANDING: Final = "standing"
UNIONS: Final = "unions"

# The register is stored whole again when what was added to it is half of it, or this, or in so many pieces.
_SMALL_BYTES: Final = 64 << 10
_MOST_PIECES: Final = 256


class SlotHeader(msgspec.Struct):
    """What a slot keeps once for a step and is small, so that it may change in every micro-batch.

    Data that waits because the step is paused is stored in so many parts, of so many bytes together. `progress` is what
    is known of event time.
    """

    paused: bool = False
    cache_generation: int = 0
    held_bytes: int = 0
    held_parts: int = 0
    progress: Progress | None = None

    @classmethod
    def of(cls, stored: bytes | None) -> SlotHeader:
        """From the stored form."""
        return cls() if stored is None else msgspec.msgpack.decode(stored, type=cls)

    def dump(self) -> bytes | None:
        """The stored form; None when there is nothing to keep."""
        return None if self == SlotHeader() else msgspec.msgpack.encode(self)


class Header(msgspec.Struct):
    """All that a slot keeps once for a step, as one; in this form it is in snapshots.

    `unions` are those of the step's union list states; for the rest see `SlotHeader`.
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


def header_of(tables: SlotTables) -> Header:
    """All that a slot has stored once for its step."""
    small = SlotHeader.of(tables.header)
    parts = tables.parts
    register = parts.get(REGISTER)
    return Header(
        register_of(register).dump() if register else None,
        whole_part(parts.get(SHARED)),
        whole_part(parts.get(STANDING)) or b"",
        unions=whole_part(parts.get(UNIONS)),
        **msgspec.structs.asdict(small),
    )


def put_header(tables: SlotTables, header: Header) -> None:
    """Let a slot that has stored nothing keep all this once for its step."""
    small = {name: getattr(header, name) for name in SlotHeader.__struct_fields__}
    tables.put_header(SlotHeader(**small).dump())
    found = {
        REGISTER: header.register,
        SHARED: header.shared,
        STANDING: header.standing or None,
        UNIONS: header.unions,
    }
    for name, content in found.items():
        if content is not None:
            tables.parts.put(name, content)


def register_of(pieces: Sequence[bytes]) -> Register:
    """The register from what is stored of it."""
    return Register(pieces[0], pieces[1:]) if pieces else Register()


def store_register(tables: SlotTables, register: Register) -> None:
    """Store what was noted in a register, by itself or, now and then, with all that is known."""
    noted = register.settle()
    if noted is None:
        return
    whole, *pieces = tables.parts.sizes(REGISTER) or [0]
    if not whole or len(pieces) >= _MOST_PIECES or sum(pieces) + len(noted) > max(whole // 2, _SMALL_BYTES):
        register.shrink()
        tables.parts.put(REGISTER, register.dump())
    else:
        tables.parts.add(REGISTER, noted)
    tables.parts.keep(REGISTER, register)


def whole_part(pieces: Sequence[bytes]) -> bytes | None:
    """A part that is stored in one piece, None when it is not there."""
    return pieces[0] if pieces else None


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
        progress=merge_progress([header.progress for header in headers]),
    )


def report_of(admitted: AdmittedCommand, outcome: Outcome, reason: str = "", **more: Any) -> Report:
    """A report on a command."""
    command = admitted.command
    return Report(
        admitted.place,
        command.id,
        command.kind,
        str(command.target),
        command.version,
        command.issued_by,
        outcome,
        reason,
        **more,
    )


def dead_letter_of(admitted: AdmittedCommand, error: Exception, step: str) -> DeadLetter:
    """The dead letter of a command whose handler raised."""
    return letter_of(admitted, reason_of(error), step)


def letter_of(admitted: AdmittedCommand, reason: str, step: str) -> DeadLetter:
    """The dead letter of a command, or of what its handler has emitted."""
    place = admitted.place
    raw = msgspec.json.encode(admitted.command)
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
