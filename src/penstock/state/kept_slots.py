"""What a worker keeps of its slots' states between micro-batches, within a bound of memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

from penstock.state.group_table import GroupTable
from penstock.state.slot_tables import CachedSlot

__all__ = ["DEFAULT_STATE_MEMORY_BYTES", "SlotCache", "kept_slots"]

DEFAULT_STATE_MEMORY_BYTES: Final = 1 << 30
# What a worker has kept is of no use once its slot is so many versions further, and other workers have it meanwhile.
_MOST_ROUNDS: Final = 32


class _Entry(NamedTuple):
    """A kept slot: its memory, the round in which it was kept, and what is kept."""

    nbytes: int
    round: int
    kept: CachedSlot


class SlotCache:
    """Kept slots by name, those that were used last at the end.

    Beyond the bound, slots that were not used in this round or the one before go first: other workers have them by now.
    Then the tables of the slot at work go to disk, where only the indexes of their keys take memory, and then other
    slots go. So all slots together stay within the bound, or the slot that was used last is kept alone. What goes is
    read again from the stored state if it is needed; its files on disk go with it.

    A round ends when a slot is kept that was kept in it already, which takes a micro-batch.
    """

    def __init__(self, most_bytes: int = DEFAULT_STATE_MEMORY_BYTES) -> None:
        self._kept: Final[dict[Hashable, _Entry]] = {}
        self._round = 0
        self._in_round: set[Hashable] = set()
        self.most_bytes = most_bytes

    def take(self, name: Hashable) -> CachedSlot | None:
        """What is kept under a name, which is then no longer kept here: a run that fails leaves nothing behind."""
        found = self._kept.pop(name, None)
        return None if found is None else found.kept

    def put(self, name: Hashable, kept: CachedSlot) -> None:
        """Keep a slot."""
        if name in self._in_round:
            self._round += 1
            self._in_round.clear()
            for old in [n for n, entry in self._kept.items() if entry.round < self._round - _MOST_ROUNDS]:
                del self._kept[old]
        self._in_round.add(name)
        entry = _Entry(kept.nbytes, self._round, kept)
        self._make_room(entry.nbytes, self._round)
        self._kept[name] = entry

    def relieve(self, tables: Mapping[int, GroupTable]) -> None:
        """Make room for the tables of the slot at work, or put them on disk, the largest first, when there is none."""
        sizes = {group: table.nbytes for group, table in tables.items()}
        excess = self._make_room(sum(sizes.values()), self._round - 2)
        for group in sorted(sizes, key=lambda group: (-sizes[group], group)):
            if excess <= 0:
                break
            tables[group].spill()
            excess -= sizes[group] - tables[group].nbytes

    def _make_room(self, wanted_bytes: int, last_round: int) -> int:
        """Let slots go for so many bytes, those first that were used longest ago, of rounds up to the given one.

        Gives by how much the bound is exceeded then.
        """
        excess = self.nbytes + wanted_bytes - self.most_bytes
        for name, entry in list(self._kept.items()):
            if excess <= 0:
                break
            if entry.round <= last_round:
                del self._kept[name]
                excess -= entry.nbytes
        return excess

    @property
    def nbytes(self) -> int:
        """About how much memory all that is kept takes."""
        return sum(entry.nbytes for entry in self._kept.values())


kept_slots: Final = SlotCache()
"""Those of this process."""
