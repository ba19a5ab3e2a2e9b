"""Initial state: the stored entries with which the slots of a job start, wherever they are kept."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Seed", "StoredEntries"]


class StoredEntries(Protocol):
    """The stored entries of a slot in a seed."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist."""

    def names(self) -> list[str]:
        """Return all names, sorted; empty when the slot has no seed."""


class Seed(Protocol):
    """The initial state of a job, as its tasks read it."""

    def entries(self, node: str, first_key_group: int) -> StoredEntries:
        """Return the stored entries of a slot of a step."""
