"""Slot parts: what a slot keeps once for its step beside a small header, each part stored when it changes.

A part is some bytes, and perhaps further pieces that were added to them since, for its owner to put together. What a
part costs to store is what it changes by, and what a micro-batch does not use of it is not even read: the worker keeps
what was made of a part, and goes by it as long as the head says that the part is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from penstock.errors import StateError
from penstock.state.stored_blocks import Content

__all__ = ["SlotParts", "StoredPart"]

T = TypeVar("T")

# About how much more room than its stored form what was made of a part takes in memory.
_IN_MEMORY: Final = 6


class _Entries(Protocol):
    """Where the parts are stored: bytes by names."""

    def get(self, name: str) -> Content | None: ...
    def put(self, name: str, content: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


class _Digest(Protocol):
    """What takes note of all that is stored."""

    def update(self, data: bytes, /) -> None: ...


class StoredPart(msgspec.Struct, array_like=True):
    """Where a part stands: the number of its last change, and of each of its pieces the number and the size."""

    changed: int
    pieces: list[tuple[int, int]]


class SlotParts:
    """The parts of a slot. `stored` says where they stand, and is kept up to date.

    `kept` is what a worker kept that was made of parts, as they were after the change with the number `since`.
    """

    def __init__(
        self, entries: _Entries, stored: dict[str, StoredPart], kept: Mapping[str, Any], since: int
    ) -> None:
        self._entries: Final = entries
        self._stored: Final = stored
        self._made = {
            name: value for name, value in kept.items() if name not in stored or stored[name].changed <= since
        }
        self._new: dict[str, tuple[bool, bytes | None]] = {}

    def get(self, name: str) -> list[bytes]:
        """The pieces of a part as they are stored, in order; none of one that is not there."""
        found = []
        for number, _ in self._pieces(name):
            piece = self._entries.get(_name(name, number))
            if piece is None:
                raise StateError(f"The piece {_name(name, number)} of the stored state is not there.")
            found.append(bytes(piece))
        return found

    def sizes(self, name: str) -> list[int]:
        """The sizes of the stored pieces of a part."""
        return [size for _, size in self._pieces(name)]

    def made(self, name: str, make: Callable[[list[bytes]], T]) -> T:
        """What `make` makes of the pieces of a part, or what the worker kept of that."""
        if name not in self._made:
            self._made[name] = make(self.get(name))
        found: T = self._made[name]
        return found

    def keep(self, name: str, value: Any) -> None:
        """Let the worker keep what is made of a part from now on."""
        self._made[name] = value

    def put(self, name: str, content: bytes | None) -> None:
        """Replace all of a part; None removes it. Once in a micro-batch, instead of `add`."""
        self._new[name] = (True, content)

    def add(self, name: str, piece: bytes) -> None:
        """Add a piece to a part. Once in a micro-batch, instead of `put`."""
        self._new[name] = (False, piece)

    @property
    def changed(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._new)

    @property
    def all_made(self) -> dict[str, Any]:
        """What the worker may keep."""
        return self._made

    @property
    def stored_bytes(self) -> int:
        """The size of what is stored."""
        return sum(size for part in self._stored.values() for _, size in part.pieces)

    @property
    def kept_bytes(self) -> int:
        """About how much memory what was made of the parts takes."""
        return _IN_MEMORY * sum(sum(self.sizes(name)) for name in self._made)

    def store(self, number: int, digest: _Digest) -> None:
        """Store what has changed as the change of a number."""
        for name, (is_whole, content) in sorted(self._new.items()):
            part = self._stored.setdefault(name, StoredPart(number, []))
            if is_whole:
                for before, _ in part.pieces:
                    self._entries.remove(_name(name, before))
                part.pieces = []
            if content is not None:
                self._entries.put(_name(name, number), content)
                part.pieces.append((number, len(content)))
            part.changed = number
            # No part is not an empty one.
            digest.update(name.encode() + (b" none" if content is None else b" some" + content))
        self._new = {}

    def _pieces(self, name: str) -> list[tuple[int, int]]:
        part = self._stored.get(name)
        return [] if part is None else part.pieces


def _name(part: str, number: int) -> str:
    return f"part/{part}/{number}"
