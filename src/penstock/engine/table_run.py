"""Table runs: run a step that computes a table on the records of one key group, as columns."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_run import GroupRun
from penstock.engine.step import MAIN, TABLE_WORK, Emission
from penstock.operators.event_times import are_out_of_range, no_time_reason, times_ms
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.operators.watermarks import INGESTION_TIME
from penstock.state.group_state import GroupState
from penstock.state.key_index import key_values
from penstock.state.open_values import OpenValues
from penstock.tables.table_step import NO_TIME, TableInput, TableResult, TableStep

__all__ = ["TableRun"]

Ints = npt.NDArray[np.int64]


class TableRun(GroupRun):
    """One run of a step that computes a table in one key group: records, then the rows that the watermark releases."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(instance, context, key_group, state)
        assert isinstance(instance.function, TableStep)
        self._step: Final = instance.function

    def _materialise(self) -> None:
        """Do nothing: states stay columns."""

    # -- data --

    def _run_data(self, data: list[Block]) -> None:
        self._flush()
        self._advance_to_newest(data)
        given = [found for found in map(self._timed, data) if found is not None]
        if given:
            keys = pa.concat_arrays([self._keys(block) for block, _ in given])
            slots = self._group.slots_of(keys)
            names = list(self._core.inputs[-1].record_type.field_names)
            batch = pa.concat_batches([block.batch.select(names) for block, _ in given])
            times = np.concatenate([times for _, times in given]) if given[0][1] is not None else None
            result = self._step.update(self._input(batch, slots, times))
            self._take(result)
            for output, rows in result.side.items():
                self._emit_side(output, batch, keys, times, rows)
        self._instance.cursor.time = None

    def _input(self, batch: pa.RecordBatch, slots: Ints, times: Ints | None) -> TableInput:
        stored = {name: column.stored for name, column in self._group.columns.items()}
        watermark_ms, wants_before = self._instance.clock.watermark_ms, not self._core.only_after
        return TableInput(self._group.keys, slots, batch, times, stored, watermark_ms, wants_before)

    def _timed(self, block: Block) -> tuple[Block, Ints] | tuple[Block, None] | None:
        """Return the records of a block that have an event time, with these times if the step has any."""
        time = self._core.inputs[block.input].time
        if time is None:
            return block, None
        rows = block.batch.num_rows
        if time == INGESTION_TIME:
            return block, np.full(rows, self._instance.clock.now_ms, np.int64)
        found, is_missing = times_ms(block.batch.column(time))
        if not self._waits:
            return block, np.where(is_missing, NO_TIME, found)
        wrong = is_missing | are_out_of_range(found)
        for row in np.flatnonzero(wrong).tolist():
            self._dead_letter(block, row, no_time_reason(time))
        if wrong.all():
            return None
        if wrong.any():
            kept = np.flatnonzero(~wrong)
            batch = block.batch.take(pa.array(kept))
            return dataclasses.replace(block, batch=batch), found[kept]
        return block, found

    @property
    def _waits(self) -> bool:
        return self._step.waiting_state is not None

    # -- the watermark --

    def _fire_by_event(self, due: pa.Array) -> None:  # noqa: ARG002  # they are among the keys of the run
        after_ms = self._instance.clock.after_ms
        if not self._waits or after_ms is None or not len(self._group.keys):
            return
        self._flush()
        kind = self._core.inputs[-1].record_type
        none = pa.RecordBatch.from_pylist([], schema=kind.schema)
        self._take(self._step.advance(self._input(none, np.empty(0, np.int64), None), after_ms))

    # -- results --

    def _take(self, result: TableResult) -> None:
        """Store the new states, and emit records and dead letters."""
        changed = np.arange(len(self._group.keys)) if result.changed is None else result.changed
        if len(changed):
            for name, stored in result.stored.items():
                self._group.columns[name].replace(stored, changed)
        self._instance.refresh()
        if result.batch is not None and result.batch.num_rows:
            keys = self._group.keys.take(pa.array(result.slots))
            self._emit_table(MAIN, result.batch, keys, result.times_ms)
        for slot, reason in result.failures:
            key = key_values(self._group.keys.slice(slot, 1))[0]
            raw = msgspec.json.encode({"key": key})
            self._result.dead_letters.append(DeadLetter(reason, TABLE_WORK, self._core.step, "", 0, raw))

    def _emit_side(
        self, output: str, batch: pa.RecordBatch, keys: pa.Array, times: Ints | None, rows: Ints
    ) -> None:
        if len(rows):
            picked = pa.array(rows)
            kind = self._core.outputs[output]
            found = kind.fields_of(batch).take(picked).cast(kind.schema)
            self._emit_table(output, found, keys.take(picked), None if times is None else times[rows])

    def _emit_table(self, output: str, batch: pa.RecordBatch, keys: pa.Array, times: Ints | None) -> None:
        column = None
        if output in self._core.timed:
            column = (
                pa.nulls(len(keys), pa.int64()) if times is None else pa.array(times, mask=times == NO_TIME)
            )
        self._result.emissions.append(Emission(output, batch, keys, column))
