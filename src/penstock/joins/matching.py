"""Matching: find the rows of one side that have the key of a row of the other and a time near its own."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.joins.held_rows import Ints, Mask

__all__ = ["SortedRows", "expand"]

_MOST: Final = 2**62


class SortedRows:
    """Rows by slot and time, to be searched for many ranges at once.

    Each row has one number, of its slot and its time, so that a range of times of a key is a range of numbers. `keys`
    is the number of slots.
    """

    def __init__(self, slots: Ints, times: Ints, keys: int) -> None:
        self._base = int(times.min()) if len(times) else 0
        self._width = (int(times.max()) if len(times) else 0) - self._base + 1
        self._ranks: Ints | None = None
        if (keys + 1) * (self._width + 1) >= _MOST:
            # The times are too far apart for one number, so their ranks stand for them.
            self._ranks = np.unique(times)
            times = np.searchsorted(self._ranks, times)
            self._base, self._width = 0, len(self._ranks)
        codes = slots * (self._width + 1) + (times - self._base)
        self.order: Final = np.argsort(codes, kind="stable")
        self._codes: Final = codes[self.order]
        self._keys: Final = keys

    def __len__(self) -> int:
        return len(self._codes)

    def before(self, slots: Ints, times: Ints) -> Ints:
        """Return for each slot and time the place of the first row of the slot that is not before the time."""
        if self._ranks is not None:
            times = np.searchsorted(self._ranks, times)
        offsets = np.clip(times - self._base, 0, self._width)
        found: Ints = np.searchsorted(self._codes, slots * (self._width + 1) + offsets)
        return found

    def latest(self, slots: Ints, times: Ints) -> tuple[Ints, Mask]:
        """Return for each slot and time the last row at or before it, and a mask of those that have one."""
        ends = self.before(slots, times + 1)
        # The keys are searched for in their order, which is fast.
        firsts = np.searchsorted(self._codes, np.arange(self._keys) * (self._width + 1))
        has_one = ends > firsts[slots]
        return self.order[np.maximum(ends - 1, 0)], has_one

    def pairs(self, slots: Ints, lows: Ints, highs: Ints) -> tuple[Ints, Ints]:
        """Return for each range, with both bounds included, its number and each row in it, by time."""
        first = self.before(slots, lows)
        numbers, places = expand(first, self.before(slots, highs + 1))
        return numbers, self.order[places]


def expand(firsts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return each place in the ranges, after the number of its range."""
    counts = np.maximum(ends - firsts, 0)
    numbers = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return numbers, np.arange(len(numbers)) - before[numbers] + firsts[numbers]
