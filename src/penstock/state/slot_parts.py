"""Slot parts: data that a slot keeps once for its step, in addition to a small header. A part is stored on change.

A part is a first piece of bytes, perhaps followed by pieces that were added since; its owner combines them. The cost of
storing a part depends on its changes, and a micro-batch does not read parts that it does not use. The worker caches the
object built from a part, and uses it as long as the head says that the part has not changed.

An owner may change its part in many rounds before the slot stores it. So it only notes the change; the content to store
is asked for once, when the parts are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.errors import StateError
from penstock.state.stored_blocks import Entries

__all__ = ["PartChange", "SlotParts", "StoredPart"]

T = TypeVar("T")

# The memory of the object built from a part, as a multiple of the part's stored size (approximate).
_IN_MEMORY: Final = 6


class _Digest(Protocol):
    """The running digest of everything that is stored."""

    def update(self, data: bytes, /) -> None: ...


class PartChange(NamedTuple):
    """The change of a part to store: its whole content, where None removes it, or a piece to add."""

    content: bytes | None
    is_whole: bool = True


class StoredPart(msgspec.Struct, array_like=True):
    """The position of a part: the number of its last change, and the number and size of each piece."""

    changed: int
    pieces: list[tuple[int, int]]


class SlotParts:
    """The parts of a slot. `stored` has their positions, and is updated.

    `kept` are the objects that the worker has built from parts, as of the change with the number `since`.
    """

    def __init__(
        self, entries: Entries, stored: dict[str, StoredPart], kept: Mapping[str, Any], since: int
    ) -> None:
        self._entries = entries
        self._stored: Final = stored
        self._made = {
            name: value for name, value in kept.items() if name not in stored or stored[name].changed <= since
        }
        self._new: dict[str, Callable[[], PartChange]] = {}

    def get(self, name: str) -> list[bytes]:
        """Return the stored pieces of a part, in order; an empty list if the part does not exist."""
        found = []
        for number, _ in self._pieces(name):
            piece = self._entries.get(_name(name, number))
            if piece is None:
                raise StateError(f"The piece {_name(name, number)} of the stored state is missing.")
            found.append(bytes(piece))
        return found

    def sizes(self, name: str) -> list[int]:
        """Return the sizes of the stored pieces of a part."""
        return [size for _, size in self._pieces(name)]

    def load(self, name: str, make: Callable[[list[bytes]], T]) -> T:
        """Return the object that `make` builds from the pieces of a part, or the one that the worker has cached."""
        if name not in self._made:
            self._made[name] = make(self.get(name))
        found: T = self._made[name]
        return found

    def keep(self, name: str, value: Any) -> None:
        """Cache the object built from a part in the worker."""
        self._made[name] = value

    def put(self, name: str, content: bytes | None) -> None:
        """Replace a part; None removes it."""
        self.change(name, lambda: PartChange(content))

    def change(self, name: str, make: Callable[[], PartChange]) -> None:
        """Note that a part has changed. When the parts are stored, the newest `make` returns the content."""
        self._new[name] = make

    def has_changed(self, name: str) -> bool:
        """Return whether a part has changes that are not stored."""
        return name in self._new

    @property
    def changed(self) -> bool:
        """Whether there are changes to store."""
        return bool(self._new)

    @property
    def loaded(self) -> dict[str, Any]:
        """The objects built from parts, which the worker may cache."""
        return self._made

    @property
    def stored_bytes(self) -> int:
        """The size of the stored parts."""
        return sum(size for part in self._stored.values() for _, size in part.pieces)

    @property
    def kept_bytes(self) -> int:
        """The approximate memory of the objects built from parts, in bytes."""
        return _IN_MEMORY * sum(sum(self.sizes(name)) for name in self._made)

    def store(self, number: int, digest: _Digest) -> None:
        """Store the changes under a number, and add them to the digest."""
        for name in sorted(self._new):
            content, is_whole = self._new[name]()
            part = self._stored.setdefault(name, StoredPart(number, []))
            if is_whole:
                for before, _ in part.pieces:
                    self._entries.remove(_name(name, before))
                part.pieces = []
            if content is not None:
                self._entries.put(_name(name, number), content)
                part.pieces.append((number, len(content)))
            part.changed = number
            # A removed part differs from an empty one.
            digest.update(name.encode() + (b" none" if content is None else b" some" + content))
        self._new = {}

    def go_on(self, entries: Entries) -> None:
        """Store later changes in these entries."""
        self._entries = entries

    def _pieces(self, name: str) -> list[tuple[int, int]]:
        part = self._stored.get(name)
        return [] if part is None else part.pieces


def _name(part: str, number: int) -> str:
    return f"part/{part}/{number}"
