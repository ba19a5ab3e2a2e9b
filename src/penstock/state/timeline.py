"""Timelines: the keys of a key group whose timers are due, found without scanning all keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TIMERS", "Domain", "Timeline", "TimerColumn", "earliest_timers"]

Domain: TypeAlias = Literal["processing", "event"]

TIMERS: Final = "@timers"
"""The column with the timers of each key, earliest first."""

# New entries are sorted in when there are this many, or this share of the sorted ones.
_FEW: Final = 1024
_SHARE: Final = 4

Microseconds = npt.NDArray[np.int64]


class TimerColumn(NamedTuple):
    """A column with the timers of each key, and a function that finds each key's first timer by a clock."""

    name: str
    earliest: Callable[[pa.RecordBatch, Domain], tuple[Microseconds, pa.Array]]


class Timeline:
    """The earliest timer of each key by one clock. It may contain timers that no longer exist, but none is missing.

    `earliest` finds the timers in rows; `rows_of` returns the current rows of keys, without duplicates, with the
    columns that `earliest` needs.
    """

    def __init__(
        self,
        earliest: Callable[[pa.RecordBatch], tuple[Microseconds, pa.Array]],
        rows: pa.RecordBatch,
        rows_of: Callable[[pa.Array], pa.RecordBatch],
    ) -> None:
        self._earliest: Final = earliest
        self._rows_of: Final = rows_of
        self._at: Microseconds = np.empty(0, np.int64)
        self._keys: pa.Array = rows.column(0).slice(0, 0)
        self._recent: list[tuple[Microseconds, pa.Array]] = []
        self._recent_rows = 0
        self._sort(rows)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the timers of changed rows."""
        at, keys = self._earliest(rows)
        if not len(at):
            return
        self._recent.append((at, keys))
        self._recent_rows += len(at)
        if self._recent_rows > max(_FEW, len(self._at) // _SHARE):
            keys = pa.concat_arrays([self._keys, *(keys for _, keys in self._recent)])
            self._recent, self._recent_rows = [], 0
            self._sort(self._rows_of(keys))

    def take_due(self, now_us: int) -> pa.Array:
        """Remove and return the keys that may have due timers. They come back when their rows change."""
        count = int(np.searchsorted(self._at, now_us, side="right"))
        due = [self._keys.slice(0, count)]
        self._at, self._keys = self._at[count:], self._keys.slice(count)
        recent, self._recent, self._recent_rows = self._recent, [], 0
        for at, keys in recent:
            is_due = at <= now_us
            due.append(keys.filter(pa.array(is_due)))
            if not is_due.all():
                self._recent.append((at[~is_due], keys.filter(pa.array(~is_due))))
                self._recent_rows += int((~is_due).sum())
        return pa.concat_arrays(due)

    @property
    def earliest_us(self) -> int | None:
        """The time at which the next timer may be due, in microseconds since 1970; None if there are no timers."""
        firsts = [int(at.min()) for at in (self._at[:1], *(at for at, _ in self._recent)) if len(at)]
        return min(firsts, default=None)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the timeline, in bytes."""
        parts = [(self._at, self._keys), *self._recent]
        return sum(int(at.nbytes + keys.nbytes) for at, keys in parts)

    def _sort(self, rows: pa.RecordBatch) -> None:
        at, keys = self._earliest(rows)
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        self._keys = keys.take(pa.array(order))


def earliest_timers(rows: pa.RecordBatch, domain: Domain) -> tuple[Microseconds, pa.Array]:
    """Return the time of each key's first timer by a clock, and the keys that have one."""
    timers = rows.column(TIMERS)
    parents = pc.list_parent_indices(timers).to_numpy()
    flat = pc.list_flatten(timers)
    mine = np.flatnonzero(pc.equal(pc.struct_field(flat, "domain"), domain).to_numpy(zero_copy_only=False))
    # The timers of a key are sorted, so its first one counts.
    found, firsts = np.unique(parents[mine], return_index=True)
    at = pc.struct_field(flat, "at").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return at[mine[firsts]], rows.column(0).take(pa.array(found))
