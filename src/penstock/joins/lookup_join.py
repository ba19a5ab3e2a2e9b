"""Lookup joins: add to each record the fields that a dimension has for its key when the record is processed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.expression import Condition
from penstock.joins.held_rows import HeldRows, Ints, Mask, Sides
from penstock.joins.join_step import Joined, JoinStep, JoinTimes, Problem, due_times
from penstock.joins.pair_expressions import NONE, Pairs
from penstock.operators.event_times import times_ms

__all__ = ["NO_RECORD", "LookupJoin"]

NO_RECORD: Final = "the dimension has no record for the key"


class LookupJoin(JoinStep):
    """Joins a record with the latest record of the dimension for its key, as known when the record is processed.

    The records of the dimension in a micro-batch take effect before the others. A record without one is handled as
    declared, at once or after it has waited for `wait_ms` by the clock. Waiting records are held with the time of their
    arrival; `time_field` is the field with their event time, if they have one.
    """

    needs_time = False

    def __init__(
        self,
        side_inputs: tuple[int, int],
        deleted: Condition | None,
        waiting: tuple[int | None, str | None],
        *arguments: Any,
        has_letters: bool,
    ) -> None:
        self.side_inputs = side_inputs
        self.deleted: Final = deleted
        self.wait_ms: Final = waiting[0]
        self.time_field: Final = waiting[1]
        self.has_letters: Final = has_letters
        super().__init__(*arguments)

    @property
    def is_by_clock(self) -> bool:
        """Whether records wait by the clock."""
        return self.wait_ms is not None

    def late(self, held: Sides, new: Sides, before_ms: int) -> tuple[Mask, Mask]:  # noqa: ARG002  # as declared
        """Return that no record is too late."""
        return np.zeros(len(new[0]), bool), np.zeros(len(new[1]), bool)

    def join(self, held: Sides, new: Sides, times: JoinTimes, keys: pa.Array) -> Joined:
        """Take over the new dimension, and emit the records that have one or have waited long enough."""
        left, right = held[0].plus(new[0]), held[1].plus(new[1])
        sides = (left, right)
        latest = np.full(len(keys), NONE, np.int64)
        np.maximum.at(latest, right.slots, np.arange(len(right)))
        is_deleted, problems = self._deleted(right, len(held[1]))
        latest[np.append(is_deleted, False)[latest]] = NONE
        found = latest[left.slots]
        decided = found != NONE
        if self.wait_ms is None or times.ends:
            decided[:] = True
        else:
            decided |= left.times + self.wait_ms <= times.now_ms
        rows = np.flatnonzero(decided)
        batch, pairs, more = self._emitted(rows, found[rows], sides)
        waiting = left.where(~decided)
        keep_right = np.zeros(len(right), bool)
        keep_right[latest[latest != NONE]] = True
        changed = [new[1].slots, left.slots[: len(held[0])][decided[: len(held[0])]], waiting.slots]
        return Joined(
            batch,
            left.slots[pairs.left],
            pairs.times,
            (waiting, right.where(keep_right)),
            due_times(len(keys), (waiting.slots, waiting.times + (self.wait_ms or 0))),
            np.unique(np.concatenate(changed)),
            [*problems, *more],
        )

    def _emitted(self, rows: Ints, found: Ints, sides: Sides) -> tuple[pa.RecordBatch, Pairs, list[Problem]]:
        """Return some rows joined with the records of the dimension, and the rows without one."""
        at = self._event_times(sides[0])
        pairs = Pairs(rows, found, at[rows], {})
        true, problems = self.true_pairs(pairs.where(found != NONE), sides)
        matched = np.zeros(len(sides[0]), bool)
        matched[true.left] = True
        is_missing = ~matched[rows]
        if self.has_letters:
            problems += [
                Problem(self.expressions.raw((int(row), NONE), sides), NO_RECORD) for row in rows[is_missing]
            ]
            pairs = true
        elif self.keeps_left:
            pairs = Pairs(rows, np.where(is_missing, NONE, found), pairs.times, {})
        else:
            pairs = true
        batch, pairs, more = self.records(pairs, sides)
        return batch, pairs, [*problems, *more]

    def _event_times(self, left: HeldRows) -> Ints:
        """Return the event time of each record; of those that wait, the rows have the time of their arrival."""
        if self.wait_ms is None or self.time_field is None or not len(left):
            return left.times
        return times_ms(pc.struct_field(left.records, self.time_field))[0]

    def _deleted(self, right: HeldRows, known: int) -> tuple[Mask, list[Problem]]:
        """Return which records of the dimension remove their key, and the new ones for which `deleted` has no value."""
        if self.deleted is None or not len(right):
            return np.zeros(len(right), bool), []
        batch = pa.RecordBatch.from_arrays(right.records.flatten(), list(self.kinds[1].field_names))
        mask, failures = self.deleted.rows(batch, self.parameters())
        empty = HeldRows.empty(self.kinds[0])
        return mask, [
            Problem(self.expressions.raw((NONE, row), (empty, right)), why)
            for row, why in failures.items()
            if row >= known
        ]
