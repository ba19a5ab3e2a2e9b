"""Memory entries: stored states in memory, as Spark's are on disk."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["MemoryEntries", "MemoryStates", "Stored"]

Stored: TypeAlias = dict[str, bytes]
"""What a slot has stored of a step: bytes by names."""


class MemoryEntries:
    """The stored entries of a step in one slot. `reads` counts how often one was asked for."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.reads = 0

    def get(self, name: str) -> bytes | None:
        """The bytes of a name, or None."""
        self.reads += 1
        return self.stored.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""
        self.stored[name] = content

    def remove(self, name: str) -> None:
        """Remove a name."""
        del self.stored[name]


class MemoryStates:
    """What the steps of one slot keep between micro-batches; `stored` has that of all slots."""

    def __init__(self, stored: dict[tuple[str, int], Stored], slot: int) -> None:
        self._stored = stored
        self._slot = slot

    def entries(self, step_id: str) -> MemoryEntries:
        """Where the state of a step is."""
        return MemoryEntries(self._stored.setdefault((step_id, self._slot), {}))
