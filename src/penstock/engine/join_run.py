"""Join runs: run a step that joins two streams on the rows of one key group, as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_emissions import DueTimers
from penstock.engine.group_run import GroupRun
from penstock.engine.step import MAIN, Emission, StepResult
from penstock.joins.held_rows import HeldRows, Sides
from penstock.joins.join_step import (
    DUE,
    JOINS,
    LATE_LEFT,
    LATE_RIGHT,
    SIDES,
    Joined,
    JoinStep,
    JoinTimes,
    stored_due,
)
from penstock.operators.event_times import are_out_of_range, no_time_reason, out_of_range_reason, times_ms
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.operators.watermarks import INGESTION_TIME
from penstock.state.group_state import GroupState
from penstock.state.group_table import sorted_by_key
from penstock.state.open_values import OpenValues

__all__ = ["JoinRun"]

_LATE: Final = (LATE_LEFT, LATE_RIGHT)


class JoinRun(GroupRun):
    """One run of a join in one key group: the records of both sides, then the rows that the watermark completes."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(instance, context, key_group, state)
        assert isinstance(instance.function, JoinStep)
        self._step: Final = instance.function

    def process(
        self,
        blocks: list[Block],
        apply_standing: Callable[[int], None] | None,  # noqa: ARG002  # joins take no commands to keys
        due: DueTimers | None = None,
    ) -> StepResult:
        """Join the records of the blocks, and let the watermark advance unless more data of the micro-batch follows."""
        if due is not None:
            # The order in which keys fall due depends on the tables that the worker has kept.
            due = DueTimers(_sort(due.processing), None if due.event is None else _sort(due.event))
        self._load_keys(blocks, due)
        clock = self._instance.clock
        moves = due is not None and due.event is not None and clock.after_ms != clock.watermark_ms
        ends = clock.ends and moves
        times = JoinTimes(clock.watermark_ms, clock.after_ms if moves else None, clock.now_ms, ends)
        sides = [[block for block in blocks if block.input == number] for number in self._step.side_inputs]
        arrived = (self._rows(0, sides[0]), self._rows(1, sides[1]))
        columns = self._state.columns
        held = (HeldRows.of_stored(columns[SIDES[0]].stored), HeldRows.of_stored(columns[SIDES[1]].stored))
        new = self._emit_late(arrived, held, times)
        is_due = times.after_ms is not None or (due is not None and len(due.processing) > 0)
        if any(map(len, new)) or (is_due and any(map(len, held))):
            self._take(self._step.join(held, new, times, self._group.keys))
        self._result.changes = self._state.changes()
        return self._result

    def _materialise(self) -> None:
        """Do nothing: rows stay columns."""

    def _rows(self, side: int, blocks: list[Block]) -> HeldRows:
        """Return the records of one side that have a valid time."""
        kind = self._step.kinds[side]
        found = HeldRows.empty(kind)
        for block in blocks:
            times, invalid = self._times_of(block)
            batch, keys = block.batch, self._keys(block)
            if invalid.any():
                self._reject(block, times, invalid)
                kept = pa.array(~invalid)
                batch, keys, times = batch.filter(kept), keys.filter(kept), times[~invalid]
            found = found.plus(HeldRows.new(self._group.slots_of(keys), times, batch, kind))
        return found

    def _times_of(self, block: Block) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the event time of each record, and a mask of invalid ones."""
        time, rows = self._core.inputs[block.input].time, block.batch.num_rows
        now = np.full(rows, self._instance.clock.now_ms, np.int64)
        if time is None or time == INGESTION_TIME or self._step.is_by_clock:
            return now, np.zeros(rows, bool)
        times, is_missing = times_ms(block.batch.column(time))
        if not self._step.needs_time:
            invalid = is_missing | are_out_of_range(times)
            return np.where(invalid, now, times), np.zeros(rows, bool)
        return times, is_missing | are_out_of_range(times)

    def _reject(self, block: Block, times: npt.NDArray[np.int64], invalid: npt.NDArray[np.bool_]) -> None:
        """Add the dead letters of records without a valid time."""
        time = self._core.inputs[block.input].time
        assert time is not None
        for row in np.flatnonzero(invalid).tolist():
            is_missing = not block.batch.column(time)[row].is_valid
            self._dead_letter(
                block, row, no_time_reason(time) if is_missing else out_of_range_reason(int(times[row]))
            )

    def _emit_late(self, new: Sides, held: Sides, times: JoinTimes) -> Sides:
        """Emit the records that are too late, and return the others."""
        if times.before_ms is None:
            return new
        left, right = self._step.late(held, new, times.before_ms)
        return self._without_late(0, new[0], left), self._without_late(1, new[1], right)

    def _without_late(self, side: int, rows: HeldRows, late: npt.NDArray[np.bool_]) -> HeldRows:
        if not late.any():
            return rows
        gone = rows.where(late)
        self._result.counts["late"] += len(gone)
        batch = pa.RecordBatch.from_arrays(gone.records.flatten(), schema=self._step.kinds[side].schema)
        self._emit_rows(_LATE[side], batch, gone.slots, gone.times)
        return rows.where(~late)

    def _take(self, joined: Joined) -> None:
        """Emit the records of a join, and put the rows that it still holds into the state."""
        columns, keys = self._state.columns, len(self._group.keys)
        due = stored_due(joined.due)
        # A key that was due is found again only if its row is stored again.
        moved = np.flatnonzero(pc.not_equal(_plain(due), _plain(columns[DUE].stored)))
        changed = np.union1d(joined.changed, moved)
        for name, rows in zip(SIDES, joined.held, strict=True):
            column = columns[name]
            column.replace(rows.to_stored(keys, column.spec.arrow_type), changed)
        columns[DUE].replace(due, changed)
        if joined.batch.num_rows:
            self._emit_rows(MAIN, joined.batch, joined.slots, joined.times)
        step = self._core.step
        self._result.dead_letters += [
            DeadLetter(problem.reason, JOINS, step, "", 0, problem.raw) for problem in joined.problems
        ]

    def _emit_rows(
        self, output: str, batch: pa.RecordBatch, slots: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
    ) -> None:
        at = pa.array(times) if output in self._core.timed else None
        self._result.emissions.append(Emission(output, batch, self._group.keys.take(pa.array(slots)), at))


def _sort(keys: pa.Array) -> pa.Array:
    return sorted_by_key(pa.RecordBatch.from_arrays([keys], ["key"])).column(0)


def _plain(due: pa.Array) -> pa.Array:
    """Return due times as numbers; one of them stands for null."""
    return due.cast(pa.int64()).fill_null(-1)
