"""As-of joins: pair each record with the version of its key that was in force at its time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.expressions.expression import Condition
from penstock.joins.held_rows import HeldRows, Ints, Mask, Sides
from penstock.joins.join_step import END_OF_ROWS, Joined, JoinStep, JoinTimes, Problem, due_times
from penstock.joins.matching import SortedRows
from penstock.joins.pair_expressions import NONE, Pairs

__all__ = ["AsOfJoin"]


class AsOfJoin(JoinStep):
    """Joins a record with the latest version at or before its time, once the watermark has passed that time.

    Of two versions at one time, the one that came later counts. A version for which `deleted` is true ends the one
    before it. Of the versions that the watermark has passed, the latest of each key is kept.
    """

    def __init__(self, deleted: Condition | None, *arguments: Any) -> None:
        self.deleted: Final = deleted
        super().__init__(*arguments)

    def late(self, held: Sides, new: Sides, before_ms: int) -> tuple[Mask, Mask]:  # noqa: ARG002  # as declared
        """Return which new records are late: those behind the watermark. A late version still holds from now on."""
        return new[0].times <= before_ms, np.zeros(len(new[1]), bool)

    def join(self, held: Sides, new: Sides, times: JoinTimes, keys: pa.Array) -> Joined:
        """Emit the records that the watermark has passed, with their versions, and drop the versions before these."""
        left, right = held[0].plus(new[0]), held[1].plus(new[1])
        sides = (left, right)
        versions = SortedRows(right.slots, right.times, len(keys))
        passed_ms = times.passed_ms
        ready = np.flatnonzero(left.times <= passed_ms)
        ready = ready[np.argsort(left.times[ready], kind="stable")]
        found = _latest(versions, left.slots[ready], left.times[ready])
        is_deleted, problems = self._deleted(right)
        # The last one stands for no version.
        found[np.append(is_deleted, False)[found]] = NONE
        pairs = Pairs(ready, found, left.times[ready], {})
        has_version = found != NONE
        true, more = self.true_pairs(pairs.where(has_version), sides)
        if self.keeps_left:
            matched = np.zeros(len(left), bool)
            matched[true.left] = True
            pairs = Pairs(ready, np.where(matched[ready], found, NONE), pairs.times, {})
        else:
            pairs = true
        batch, pairs, failed = self.records(pairs, sides)
        keep_left = left.times > passed_ms
        keep_right = self._needed(versions, right, is_deleted, passed_ms, len(keys))
        changed = [held_row.slots for held_row in new]
        changed += [left.slots[~keep_left], right.slots[~keep_right]]
        waiting = left.where(keep_left)
        # A version that the watermark reaches makes those before it, and itself if it is a deletion, unnecessary.
        ahead = right.times > passed_ms
        return Joined(
            batch,
            left.slots[pairs.left],
            pairs.times,
            (waiting, right.where(keep_right)),
            due_times(len(keys), (waiting.slots, waiting.times), (right.slots[ahead], right.times[ahead])),
            np.unique(np.concatenate(changed)),
            [*problems, *more, *failed],
        )

    def _deleted(self, right: HeldRows) -> tuple[Mask, list[Problem]]:
        """Return which versions end the one before, and those for which `deleted` has no value."""
        if self.deleted is None or not len(right):
            return np.zeros(len(right), bool), []
        batch = pa.RecordBatch.from_arrays(right.records.flatten(), list(self.kinds[1].field_names))
        mask, failures = self.deleted.rows(batch, self.parameters())
        empty = HeldRows.empty(self.kinds[0])
        problems = [
            Problem(self.expressions.raw((NONE, row), (empty, right)), why) for row, why in failures.items()
        ]
        return mask, problems

    def _needed(
        self, versions: SortedRows, right: HeldRows, is_deleted: Mask, passed_ms: int, keys: int
    ) -> Mask:
        """Return which versions may still be needed: later ones, and the latest before unless it is a deletion."""
        keep: Mask = right.times > passed_ms
        if passed_ms > -END_OF_ROWS:
            slots = np.arange(keys)
            latest = _latest(versions, slots, np.full(keys, passed_ms))
            latest = latest[latest != NONE]
            keep[latest[~is_deleted[latest]]] = True
        return keep


def _latest(versions: SortedRows, slots: Ints, times: Ints) -> Ints:
    """Return for each slot and time the latest version at or before it, or `NONE`."""
    if not len(versions):
        return np.full(len(slots), NONE, np.int64)
    rows, has_one = versions.latest(slots, times)
    found: Ints = np.where(has_one, rows, NONE)
    return found
