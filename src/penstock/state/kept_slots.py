"""What a worker keeps of its slots' states between micro-batches, within a bound of memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from penstock.state.slot_tables import Kept

__all__ = ["DEFAULT_KEPT_BYTES", "KeptSlots", "kept_slots"]

DEFAULT_KEPT_BYTES: Final = 1 << 30


class KeptSlots:
    """Kept slots by name. Beyond the bound those are dropped that were not used for longest."""

    def __init__(self, most_bytes: int = DEFAULT_KEPT_BYTES) -> None:
        self._kept: Final[dict[Hashable, tuple[int, Kept]]] = {}
        self.most_bytes = most_bytes

    def take(self, name: Hashable) -> Kept | None:
        """What is kept under a name, which is then no longer kept here: a run that fails leaves nothing behind."""
        found = self._kept.pop(name, None)
        return None if found is None else found[1]

    def put(self, name: Hashable, kept: Kept) -> None:
        """Keep a slot."""
        self._kept[name] = (kept.nbytes, kept)
        while self._kept and self.nbytes > self.most_bytes:
            del self._kept[next(iter(self._kept))]

    @property
    def nbytes(self) -> int:
        """About how much memory all that is kept takes."""
        return sum(size for size, _ in self._kept.values())


kept_slots: Final = KeptSlots()
"""Those of this process."""
