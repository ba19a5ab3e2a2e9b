"""Interval joins: pair the records of a key whose times are near each other."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.joins.held_rows import Ints, Mask, Sides
from penstock.joins.join_step import Joined, JoinStep, JoinTimes, due_times, pair_with_none
from penstock.joins.matching import SortedRows
from penstock.joins.pair_expressions import Pairs

__all__ = ["IntervalJoin"]

# Rows that are only to be removed wait, so that a key is not rewritten for each of them.
_CLEANUPS_PER_SPAN: Final = 8


class IntervalJoin(JoinStep):
    """Joins a record at time t with those of the other side from t + `lower_ms` to t + `upper_ms`, both included.

    A pair is emitted as soon as both records are there, at the later of their times. A record without a match is
    emitted when the watermark says that none can come any more.
    """

    def __init__(self, lower_ms: int, upper_ms: int, *arguments: Any) -> None:
        self.lower_ms: Final = lower_ms
        self.upper_ms: Final = upper_ms
        super().__init__(*arguments)

    @property
    def has_marks(self) -> bool:
        """Whether rows remember that they were matched."""
        return True

    def late(self, held: Sides, new: Sides, before_ms: int) -> tuple[Mask, Mask]:  # noqa: ARG002  # as declared
        """Return which new records are behind the watermark, whose partners may have been removed."""
        return new[0].times <= before_ms, new[1].times <= before_ms

    def join(
        self,
        held: Sides,
        new: Sides,
        times: JoinTimes,
        keys: pa.Array,
    ) -> Joined:
        """Pair the new rows with all of the other side, emit the unmatched rows, and drop rows no longer needed."""
        sides = (held[0].plus(new[0]), held[1].plus(new[1]))
        pairs, problems = self.true_pairs(self._pairs(held, new, sides, keys), sides)
        marked = [
            _marked(side.matched, rows) for side, rows in zip(sides, (pairs.left, pairs.right), strict=True)
        ]
        ends = (sides[0].times + self.upper_ms, sides[1].times - self.lower_ms)
        lone = (
            [
                np.flatnonzero(~mask & (end <= times.passed_ms)) if keeps else np.empty(0, np.int64)
                for mask, end, keeps in zip(marked, ends, (self.keeps_left, self.keeps_right), strict=True)
            ]
            if times.after_ms is not None
            else [np.empty(0, np.int64)] * 2
        )
        out = _plus_lone(pairs, sides, ends, lone)
        batch, out, more = self.records(out, sides)
        waits = [
            ~mask if keeps else np.zeros(len(mask), bool)
            for mask, keeps in zip(marked, (self.keeps_left, self.keeps_right), strict=True)
        ]
        for mask, rows in zip(waits, lone, strict=True):
            mask[rows] = False
        keep = [wait | (end > times.passed_ms) for wait, end in zip(waits, ends, strict=True)]
        return Joined(
            batch,
            out.slots(*sides),
            out.times,
            tuple(  # type: ignore[arg-type]  # of two
                side.with_matched(mask).where(kept)
                for side, mask, kept in zip(sides, marked, keep, strict=True)
            ),
            self._due(sides, ends, keep, waits, keys),
            _changed(held, sides, marked, keep),
            [*problems, *more],
        )

    def _pairs(
        self,
        held: Sides,
        new: Sides,
        sides: Sides,
        keys: pa.Array,
    ) -> Pairs:
        """Return the pairs with at least one new row: new ones of the left with all of the right, then the others."""
        none = np.empty(0, np.int64)
        left, right = [none], [none]
        if len(new[0]) and len(sides[1]):
            at = new[0].times
            found = SortedRows(sides[1].slots, sides[1].times, len(keys))
            numbers, rows = found.pairs(new[0].slots, at + self.lower_ms, at + self.upper_ms)
            left.append(numbers + len(held[0]))
            right.append(rows)
        if len(new[1]) and len(held[0]):
            at = new[1].times
            found = SortedRows(held[0].slots, held[0].times, len(keys))
            numbers, rows = found.pairs(new[1].slots, at - self.upper_ms, at - self.lower_ms)
            left.append(rows)
            right.append(numbers + len(held[1]))
        lefts, rights = np.concatenate(left), np.concatenate(right)
        return Pairs(lefts, rights, np.maximum(sides[0].times[lefts], sides[1].times[rights]), {})

    def _due(
        self,
        sides: Sides,
        ends: tuple[Ints, Ints],
        keep: list[Mask],
        waits: list[Mask],
        keys: pa.Array,
    ) -> Ints:
        """Return when each key is due: at once for unmatched rows that are emitted then, else a little later."""
        grid = max(1, (self.upper_ms - self.lower_ms) // _CLEANUPS_PER_SPAN)
        found = []
        for side, end, kept, wait in zip(sides, ends, keep, waits, strict=True):
            due = np.where(wait, end, -(-end // grid) * grid)
            found.append((side.slots[kept], due[kept]))
        return due_times(len(keys), *found)


def _marked(matched: Mask, rows: Ints) -> Mask:
    found = matched.copy()
    found[rows] = True
    return found


def _plus_lone(pairs: Pairs, sides: Sides, ends: tuple[Ints, Ints], lone: list[Ints]) -> Pairs:
    """Return pairs, then the rows without a match, ordered by the time when that is certain, which is their time."""
    if not any(map(len, lone)):
        return pairs
    columns = [pair_with_none(rows, side) for side, rows in enumerate(lone)]
    left = np.concatenate([columns[0][0], columns[1][0]])
    right = np.concatenate([columns[0][1], columns[1][1]])
    times = np.concatenate(
        [np.maximum(side.times, end)[rows] for side, end, rows in zip(sides, ends, lone, strict=True)]
    )
    order = np.argsort(times, kind="stable")
    return Pairs(
        np.concatenate([pairs.left, left[order]]),
        np.concatenate([pairs.right, right[order]]),
        np.concatenate([pairs.times, times[order]]),
        {},
    )


def _changed(
    held: Sides,
    sides: Sides,
    marked: list[Mask],
    keep: list[Mask],
) -> Ints:
    """Return the slots of keys whose rows were added, marked or dropped."""
    found = []
    for before, side, mask, kept in zip(held, sides, marked, keep, strict=True):
        touched = ~kept | (mask != side.matched)
        touched[len(before) :] = True
        found.append(side.slots[touched])
    return np.unique(np.concatenate(found))
