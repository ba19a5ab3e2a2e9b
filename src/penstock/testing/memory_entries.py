"""Memory entries: stored state in memory, where Spark's is on disk."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["MemoryEntries", "MemoryStates", "Stored"]

Stored: TypeAlias = dict[str, bytes]
"""The stored entries of a step in one slot: bytes by name."""


class MemoryEntries:
    """The stored entries of a step in one slot. `reads` counts the calls of `get`."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.reads = 0

    def get(self, name: str) -> bytes | None:
        """Return the bytes of an entry, or None if it does not exist."""
        self.reads += 1
        return self.stored.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of an entry."""
        self.stored[name] = content

    def remove(self, name: str) -> None:
        """Remove an entry, if there is one."""
        self.stored.pop(name, None)


class MemoryStates:
    """The state that the steps of one slot keep between micro-batches; `stored` holds that of all slots."""

    def __init__(self, stored: dict[tuple[str, int], Stored], slot: int) -> None:
        self._stored = stored
        self._slot = slot

    def entries(self, step_id: str) -> MemoryEntries:
        """Return the stored entries of a step."""
        return MemoryEntries(self._stored.setdefault((step_id, self._slot), {}))
