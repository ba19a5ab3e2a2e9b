"""What a worker keeps of its slots' states between micro-batches, within a bound of memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from penstock.state.group_table import GroupTable
from penstock.state.slot_tables import Kept

__all__ = ["DEFAULT_STATE_MEMORY_BYTES", "KeptSlots", "kept_slots"]

DEFAULT_STATE_MEMORY_BYTES: Final = 1 << 30


class KeptSlots:
    """Kept slots by name. Tables beyond the bound are on disk, and only the indexes of their keys in memory."""

    def __init__(self, most_bytes: int = DEFAULT_STATE_MEMORY_BYTES) -> None:
        self._kept: Final[dict[Hashable, tuple[int, Kept]]] = {}
        self.most_bytes = most_bytes

    def take(self, name: Hashable) -> Kept | None:
        """What is kept under a name, which is then no longer kept here: a run that fails leaves nothing behind."""
        found = self._kept.pop(name, None)
        return None if found is None else found[1]

    def put(self, name: Hashable, kept: Kept) -> None:
        """Keep a slot."""
        self._kept[name] = (kept.nbytes, kept)

    def relieve(self, tables: Mapping[int, GroupTable]) -> None:
        """Put tables of a slot on disk, the largest first, when all slots together take more than the bound."""
        sizes = {group: table.nbytes for group, table in tables.items()}
        excess = self.nbytes + sum(sizes.values()) - self.most_bytes
        for group in sorted(sizes, key=lambda group: (-sizes[group], group)):
            if excess <= 0:
                break
            tables[group].spill()
            excess -= sizes[group] - tables[group].nbytes

    @property
    def nbytes(self) -> int:
        """About how much memory all that is kept takes."""
        return sum(size for size, _ in self._kept.values())


kept_slots: Final = KeptSlots()
"""Those of this process."""
