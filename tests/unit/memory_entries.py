"""Stored states in memory, as Spark's are on disk."""

from __future__ import annotations

__all__ = ["MemoryEntries", "Stored"]

Stored = dict[str, bytes]


class MemoryEntries:
    """Bytes by names."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.reads = 0

    def get(self, name: str) -> bytes | None:
        self.reads += 1
        return self.stored.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.stored[name] = content

    def remove(self, name: str) -> None:
        del self.stored[name]
