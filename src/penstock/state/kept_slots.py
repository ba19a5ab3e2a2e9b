"""The cache in which a worker keeps the state of its slots between micro-batches, within a memory limit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

from penstock.state.group_table import GroupTable
from penstock.state.slot_tables import CachedSlot

__all__ = ["DEFAULT_STATE_MEMORY_BYTES", "SlotCache", "kept_slots"]

DEFAULT_STATE_MEMORY_BYTES: Final = 1 << 30
# A cached slot that was not used for this many rounds is outdated: other workers have had the slot since.
_MAX_ROUNDS: Final = 32


class _Entry(NamedTuple):
    """A cached slot: its memory, the round in which it was cached, and its content."""

    nbytes: int
    round: int
    kept: CachedSlot


class SlotCache:
    """Cached slots by name, least recently used first.

    When the limit is exceeded, slots that were used neither in this round nor in the one before are dropped first:
    other workers have them by now. Next the tables of the current slot move to disk, where only their key indexes take
    memory. Then other slots are dropped. So all slots together stay within the limit, or only the last used slot is
    kept. A dropped slot is read again from the stored state when needed; its files on disk are removed with it.

    A round ends when a slot is cached for the second time in it, that is, after one micro-batch.
    """

    def __init__(self, max_bytes: int = DEFAULT_STATE_MEMORY_BYTES) -> None:
        self._kept: Final[dict[Hashable, _Entry]] = {}
        self._round = 0
        self._in_round: set[Hashable] = set()
        self.max_bytes = max_bytes

    def take(self, name: Hashable) -> CachedSlot | None:
        """Remove and return the slot cached under a name, or None. So a failed run leaves nothing in the cache."""
        found = self._kept.pop(name, None)
        return None if found is None else found.kept

    def put(self, name: Hashable, kept: CachedSlot) -> None:
        """Cache a slot."""
        if name in self._in_round:
            self._round += 1
            self._in_round.clear()
            for old in [n for n, entry in self._kept.items() if entry.round < self._round - _MAX_ROUNDS]:
                del self._kept[old]
        self._in_round.add(name)
        entry = _Entry(kept.nbytes, self._round, kept)
        self._make_room(entry.nbytes, self._round)
        self._kept[name] = entry

    def relieve(self, tables: Mapping[int, GroupTable]) -> None:
        """Make room for the tables of the current slot. If that fails, move them to disk, the largest first."""
        sizes = {group: table.nbytes for group, table in tables.items()}
        excess = self._make_room(sum(sizes.values()), self._round - 2)
        for group in sorted(sizes, key=lambda group: (-sizes[group], group)):
            if excess <= 0:
                break
            tables[group].spill()
            excess -= sizes[group] - tables[group].nbytes

    def _make_room(self, wanted_bytes: int, last_round: int) -> int:
        """Drop slots of rounds up to `last_round`, least recently used first, until `wanted_bytes` fit.

        Returns by how many bytes the limit is still exceeded.
        """
        excess = self.nbytes + wanted_bytes - self.max_bytes
        for name, entry in list(self._kept.items()):
            if excess <= 0:
                break
            if entry.round <= last_round:
                del self._kept[name]
                excess -= entry.nbytes
        return excess

    @property
    def nbytes(self) -> int:
        """The approximate memory of all cached slots, in bytes."""
        return sum(entry.nbytes for entry in self._kept.values())


kept_slots: Final = SlotCache()
"""The cache of this process."""
