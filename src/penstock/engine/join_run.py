"""Join runs: run a step that joins two streams on the rows of one key group, as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from penstock.state.open_values import OpenValues

__all__ = ["JoinRun"]

_LATE: Final = (LATE_LEFT, LATE_RIGHT)


class JoinRun(GroupRun):
    """One run of a join in one key group: the records of both sides, then what the watermark decides."""

    def __init__(
        self, binding: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(binding, context, key_group, state)
        assert isinstance(binding.function, JoinStep)
        self._step: Final = binding.function

    def process(
        self,
        blocks: list[Block],
        apply_standing: Callable[[int], None] | None,  # noqa: ARG002  # joins take no commands to keys
        due: DueTimers | None = None,
    ) -> StepResult:
        """Join the records of the blocks, and let the watermark advance unless more data of the micro-batch follows."""
        self._load_keys(blocks, due)
        clock = self._binding.clock
        moves = due is not None and due.event is not None and clock.after_ms != clock.watermark_ms
        times = JoinTimes(clock.watermark_ms, clock.after_ms if moves else None)
        sides = [
            [block for block in blocks if block.input == side] for side in sorted(self._core.data_inputs)
        ]
        arrived = [self._rows(side, found) for side, found in enumerate(sides)]
        columns = self._state.columns
        held = (HeldRows.of_stored(columns[SIDES[0]].stored), HeldRows.of_stored(columns[SIDES[1]].stored))
        new = (self._in_time(0, arrived[0], held, times), self._in_time(1, arrived[1], held, times))
        if any(map(len, new)) or (times.after_ms is not None and any(map(len, held))):
            self._take(self._step.join(held, new, times, len(self._group.keys)))
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
        time = self._core.inputs[block.input].time
        assert time is not None
        if time == INGESTION_TIME:
            rows = block.batch.num_rows
            return np.full(rows, self._binding.clock.now_ms, np.int64), np.zeros(rows, bool)
        times, is_missing = times_ms(block.batch.column(time))
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

    def _in_time(self, side: int, rows: HeldRows, held: Sides, times: JoinTimes) -> HeldRows:
        """Emit the records that are too late, and return the others."""
        if not len(rows) or times.before_ms is None:
            return rows
        late = self._step.is_late(side, rows, held, times.before_ms)
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
        for name, rows in zip(SIDES, joined.held, strict=True):
            column = columns[name]
            column.replace(rows.to_stored(keys, column.spec.arrow_type), joined.changed)
        columns[DUE].replace(stored_due(joined.due), joined.changed)
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
