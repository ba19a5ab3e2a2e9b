"""Slots: a task's share of a step, the state that it keeps once for the step, and its reports on commands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.control.admitted_commands import AdmittedCommand
from penstock.control.receipts import Outcome, Report
from penstock.control.register import Register, merge_registers
from penstock.operators.error_reasons import reason_of
from penstock.operators.record_blocks import DeadLetter
from penstock.operators.watermarks import Progress, merge_progress
from penstock.state.slot_parts import PartChange
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
    "merge_headers",
    "put_header",
    "register_of",
    "report_of",
    "store_register",
    "whole_part",
]


# The parts that a slot keeps once for a step and stores when they change, in addition to the small header.
REGISTER: Final = "register"
SHARED: Final = "shared"
STANDING: Final = "standing"
UNIONS: Final = "unions"

# The register is rewritten when the pieces added exceed half of it and this size, or reach this number.
_SMALL_BYTES: Final = 64 << 10
_MAX_PIECES: Final = 256


class SlotHeader(msgspec.Struct):
    """The small state that a slot keeps once for a step, which may change in every micro-batch.

    While the step is paused, waiting data is stored in `held_parts` parts with `held_bytes` bytes in total. `progress`
    is that of event time.
    """

    paused: bool = False
    cache_generation: int = 0
    held_bytes: int = 0
    held_parts: int = 0
    progress: Progress | None = None

    @classmethod
    def of(cls, stored: bytes | None) -> SlotHeader:
        """Decode the stored form."""
        return cls() if stored is None else msgspec.msgpack.decode(stored, type=cls)

    def dump(self) -> bytes | None:
        """Return the stored form; None if all fields have their defaults."""
        return None if self == SlotHeader() else msgspec.msgpack.encode(self)


class Header(msgspec.Struct):
    """The whole state that a slot keeps once for a step, in the form that snapshots contain.

    `unions` are those of the step's union list states; see `SlotHeader` for the other fields.
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
        """Decode the stored form."""
        return cls() if stored is None else msgspec.msgpack.decode(stored, type=cls)

    def dump(self) -> bytes | None:
        """Return the stored form; None if all fields have their defaults."""
        return None if self == Header() else msgspec.msgpack.encode(self)


def header_of(tables: SlotTables) -> Header:
    """Return the whole state that a slot has stored once for its step."""
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
    """Store the whole state of a slot that has stored nothing yet."""
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
    """Return the register from its stored pieces."""
    return Register(pieces[0], pieces[1:]) if pieces else Register()


def store_register(tables: SlotTables, register: Register) -> None:
    """Settle a register. When the tables are stored, its additions become a new piece; occasionally it is rewritten."""
    if register.settle():
        tables.parts.change(REGISTER, lambda: _register_change(tables.parts.sizes(REGISTER), register))
        tables.parts.keep(REGISTER, register)


def _register_change(sizes: Sequence[int], register: Register) -> PartChange:
    settled = register.take_settled()
    whole, *pieces = sizes or [0]
    added = sum(pieces) + len(settled or b"")
    if not whole or len(pieces) >= _MAX_PIECES or added > max(whole // 2, _SMALL_BYTES):
        register.shrink()
        return PartChange(register.dump())
    return PartChange(settled, is_whole=False)


def whole_part(pieces: Sequence[bytes]) -> bytes | None:
    """Return a part that is stored in one piece; None if it does not exist."""
    return pieces[0] if pieces else None


def held_name(part: int) -> str:
    """Return the name of a stored part of waiting data, which holds the data of one micro-batch."""
    return f"held/{part}"


def merge_headers(headers: Sequence[Header]) -> Header:
    """Merge the headers of a step's slots. They only differ in the versions of single keys and in held data.

    Unions are rebuilt when the state is restored.
    """
    if not headers:
        return Header()
    registers = [header.register for header in headers if header.register is not None]
    return msgspec.structs.replace(
        headers[0],
        register=merge_registers(registers) if registers else None,
        cache_generation=max(header.cache_generation for header in headers),
        unions=None,
        held_bytes=0,
        held_parts=0,
        progress=merge_progress([header.progress for header in headers]),
    )


def report_of(admitted: AdmittedCommand, outcome: Outcome, reason: str = "", **more: Any) -> Report:
    """Return a report on a command."""
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
        apply=command.apply,
        **more,
    )


def dead_letter_of(admitted: AdmittedCommand, error: Exception, step: str) -> DeadLetter:
    """Return the dead letter of a command whose handler raised."""
    return letter_of(admitted, reason_of(error), step)


def letter_of(admitted: AdmittedCommand, reason: str, step: str) -> DeadLetter:
    """Return the dead letter of a command, or of a record that its handler emitted."""
    place = admitted.place
    raw = msgspec.json.encode(admitted.command)
    return DeadLetter(reason, place.stream, step, place.partition, place.offset, raw)


@dataclass(frozen=True)
class Slot:
    """A task's share of the key groups of a step; `first` is whether it is the step's first slot."""

    key_groups: Sequence[int]
    first: bool

    @functools.cached_property
    def own(self) -> frozenset[int]:
        """The key groups as a set, for lookups."""
        return frozenset(self.key_groups)
