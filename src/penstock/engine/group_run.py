"""Group runs: run a step's function on the records of one key group, record by record or in batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.instants import instant_of, nearest_instant
from penstock.engine.emission_causes import Causes, causes_in
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_emissions import (
    DueTimers,
    EmittedByTimers,
    EmittedRecords,
    FiredTimers,
    Stamps,
    conform_batch,
    row_times,
    split_fitting,
)
from penstock.engine.step import MAIN, Emission, StepResult
from penstock.errors import SchemaError
from penstock.operators.error_reasons import reason_of
from penstock.operators.event_times import (
    BEFORE_ALL,
    EVENT_TIME,
    event_times,
    largest_so_far,
)
from penstock.operators.functions import BatchContext, ConnectedProcessFunction, Context
from penstock.operators.record_blocks import OFFSET, RAW, Block, DeadLetter, join_blocks, raw_bytes
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.halves import work_by_halves
from penstock.records.small_columns import are_all_rows
from penstock.state.group_state import GroupState
from penstock.state.key_index import key_values
from penstock.state.open_values import OpenValues
from penstock.state.timeline import Domain
from penstock.state.timer import StoredTimer, Timer

__all__ = ["GroupRun"]


# The times of a record: the one by which values are read, the largest event time so far, and the one in a column.
_Moment = tuple[dt.datetime | None, int | None, int | None]
# The keys of some rows, their event times if a later step uses them, and their causes if a sink uses them.
_OfRows = tuple[pa.Array, pa.Array | None, Causes | None]


class GroupRun:
    """One run of a step in one key group: control records, then data."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        self._core: Final = instance.core
        self._instance: Final = instance
        self._function: Final = instance.function
        self._state: Final = state
        self._context: Final = context
        self._result: Final = StepResult()
        context.key_group = key_group
        instance.cursor.clock_ms = instance.clock.event_ms
        instance.cursor.watermark_ms = instance.clock.watermark_ms
        instance.enter(self._state)

    @property
    def _group(self) -> GroupState:
        """The rows of the key group, for code that works on whole columns."""
        assert isinstance(self._state, GroupState)
        return self._state

    def process(
        self, blocks: list[Block], apply_standing: Callable[[int], None] | None, due: DueTimers | None = None
    ) -> StepResult:
        """Run the blocks, which are in order; `apply_standing` is called first for each key that is new to the step.

        `due` is None when no timers fire.
        """
        self._load_keys(blocks, due)
        if apply_standing is not None:
            self._apply_standing(blocks, apply_standing)
        data = []
        # Control records may have registered timers that are already due.
        waking = []
        for block in blocks:
            if self._core.inputs[block.input].is_control:
                assert isinstance(self._function, ConnectedProcessFunction)
                self._run_per_record(block, self._function.process_control)
                waking.append(self._keys(block))
            else:
                data.append(block)
        if due is not None and (waking or len(due.processing)):
            self._fire(pa.concat_arrays([due.processing, *waking]))
        self._run_data(data)
        if due is not None and due.event is not None and self._instance.clock.after_ms is not None:
            self._fire_by_event(due.event)
        self._result.changes = self._state.changes()
        return self._result

    def _run_data(self, data: list[Block]) -> None:
        if not self._core.vectorised:
            for block in data:
                self._run_per_record(block, self._function.process_record)
            return
        self._flush()
        self._advance_to_newest(data)
        for block in join_blocks(data):
            self._run_per_batch(block)
        self._instance.cursor.time = None

    def _load_keys(self, blocks: list[Block], due: DueTimers | None) -> None:
        """Load the states of all keys in the blocks, and of keys with due timers. Open values are loaded already."""
        if isinstance(self._state, GroupState):
            keys = [self._keys(block) for block in blocks]
            if due is not None:
                keys += [found for found in due if found is not None]
            if keys:
                self._state.load_keys(keys[0] if len(keys) == 1 else pa.concat_arrays(keys))
        self._materialise()

    def _apply_standing(self, blocks: list[Block], apply_standing: Callable[[int], None]) -> None:
        """Apply the standing commands to the keys that are new to the step."""
        new = dict.fromkeys(key for block in blocks for key in self._group.new_keys(self._keys(block)))
        for key in new:
            self._instance.cursor.key = key
            apply_standing(self._context.key_group)
        if new:
            self._flush()
            self._materialise()

    def _flush(self) -> None:
        self._state.flush()
        self._instance.refresh()

    def _materialise(self) -> None:
        if not self._core.vectorised:
            self._state.materialise()
            self._instance.refresh()

    def _keys(self, block: Block) -> pa.Array:
        return self._core.inputs[block.input].keys(block)

    # -- timers --

    def _fire(self, keys: pa.Array) -> None:
        """Call the due processing-time timers."""
        self._call_all(FiredTimers(self._core.step, self._due(key_values(keys), "processing", self._now_us)))

    def _fire_by_event(self, due: pa.Array) -> None:
        """Call the due event-time timers, and timers registered by these that are already due."""
        cursor = self._instance.cursor
        timers = cursor.timers
        assert timers is not None
        if self._core.vectorised:
            self._flush()
        cursor.watermark_ms = self._instance.clock.after_ms
        watermark_us = self._instance.clock.after_us
        found = self._due([*key_values(due), *timers.changed_keys], "event", watermark_us)
        self._call_all(FiredTimers(self._core.step, found, watermark_us))
        cursor.time = None

    @property
    def _now_us(self) -> int:
        return self._instance.cursor.now_ms * 1000

    def _due(self, keys: Sequence[Any], domain: Domain, now_us: int) -> list[tuple[StoredTimer, Any]]:
        """Return the due timers of keys."""
        cursor = self._instance.cursor
        timers = cursor.timers
        assert timers is not None
        found: list[tuple[StoredTimer, Any]] = []
        for key in dict.fromkeys(keys):
            cursor.key = key
            found += [(timer, key) for timer in timers.due(domain, now_us)]
        return found

    def _call_all(self, fired: FiredTimers) -> None:
        """Call timers. If one raises, its changes are undone and it becomes a dead letter."""
        cursor = self._instance.cursor
        emitted = EmittedByTimers(fired)
        self._context.enter("", emitted)
        while fired.waiting:
            timer, key = fired.next()
            try:
                self._call(timer, key, emitted)
            except Exception as e:  # user code may raise anything
                row = emitted.current_row()
                emitted.forget(row)
                cursor.take_back()
                self._dead_letter(fired, row, reason_of(e))
            if timer.domain == "event" and cursor.timers is not None:
                fired.expect([(new, key) for new in cursor.timers.due("event", fired.watermark_us)])
        if emitted.records or emitted.side:
            key_column = pa.array([key for _, key in fired.found], self._core.key_type)
            stamps = Stamps(key_values(key_column), None) if self._core.stamped else None
            self._emit(fired, key_column, emitted, stamps)

    def _call(self, timer: StoredTimer, key: Any, emitted: EmittedRecords) -> None:
        cursor = self._instance.cursor
        cursor.key = key
        # An earlier timer may have deleted it.
        if cursor.timers is None or not cursor.timers.take(timer):
            return
        # It counts as fired even if it raises.
        cursor.undo.clear()
        if timer.domain == "event":
            cursor.time = timer.at
        row = emitted.current_row()
        called = Timer(timer.at, timer.name, "event" if timer.domain == "event" else "processing")
        for item in self._function.on_timer(called, self._context) or ():
            emitted.records.append(item)
            emitted.rows.append(row)
        cursor.undo.clear()

    # -- record by record --

    def _run_per_record(self, block: Block, process: Any) -> None:
        """Run a method on each record of a block. If it raises, undo its changes and add a dead letter."""
        source = self._core.inputs[block.input]
        key_column = self._keys(block)
        keys = self._state.objects_of(key_column)
        times = self._times(block)
        moments = None if source.is_control else self._moments(block, times)
        columns = source.columns(block.batch, keys)
        keys_left = iter(keys)
        records = zip(
            range(len(keys)), keys_left, map(source.record_type.python_class, *columns), strict=True
        )
        emitted = EmittedRecords(len(keys), keys_left)
        self._context.enter(block.stream, emitted)
        cursor = self._instance.cursor
        while True:
            try:
                if source.is_control and (times is not None or self._core.stamped):
                    self._run_controls(records, process, emitted, times, self._versions(block))
                elif moments is not None:
                    self._run_timed_records(records, process, emitted, moments)
                else:
                    self._run_records(records, process, emitted)
                break
            except Exception as e:  # user code may raise anything
                row = emitted.current_row()
                emitted.forget(row)
                cursor.take_back()
                self._dead_letter(block, row, reason_of(e))
        cursor.time = cursor.time_ms = None
        stamps = None
        if self._core.stamped:
            stamps = Stamps(keys, times, emitted.versions if source.is_control else None)
        self._emit(block, key_column, emitted, stamps)

    def _times(self, block: Block) -> list[dt.datetime | None] | None:
        """Return the event time of each record, or the effective time of each control record; None if unused."""
        source = self._core.inputs[block.input]
        if source.time is None:
            return None
        if not source.is_control and not (self._core.judges_by_time or self._instance.shared.timed):
            return None
        if source.time == INGESTION_TIME:
            now = instant_of(self._instance.clock.now_ms)
            return [now] * block.batch.num_rows
        return event_times(block.batch.column(source.time))

    def _moments(self, block: Block, times: list[dt.datetime | None] | None) -> list[_Moment] | None:
        """Return the times of each data record; None if unused."""
        count = block.batch.num_rows
        if times is not None:
            return list(zip(times, self._clocks(block), [None] * count, strict=True))
        if self._core.inputs[block.input].time != EVENT_TIME:
            return None
        event_times_ms = block.batch.column(EVENT_TIME).to_pylist()
        return [(None, None, at_ms) for at_ms in event_times_ms]

    def _clocks(self, block: Block) -> list[int | None]:
        """Return the largest event time up to each data record, for values that expire by event time."""
        rows = block.batch.num_rows
        time = self._core.inputs[block.input].time
        if time is None or not self._core.expires_by_event or not rows:
            return [None] * rows
        before_ms = self._result.newest_ms
        if before_ms is None:
            before_ms = self._instance.clock.event_ms
        if time == INGESTION_TIME:
            self._result.newest_ms = self._instance.clock.now_ms
            return [self._instance.clock.now_ms] * rows
        largest = largest_so_far(block.batch.column(time), BEFORE_ALL if before_ms is None else before_ms)
        clocks = [None if clock_ms == BEFORE_ALL else clock_ms for clock_ms in largest.tolist()]
        self._result.newest_ms = clocks[-1]
        return clocks

    def _advance_to_newest(self, data: list[Block]) -> None:
        """Write columns at the largest event time of the data, so the result does not depend on batch boundaries."""
        for block in data:
            self._clocks(block)
        if self._result.newest_ms is not None:
            self._instance.cursor.time = nearest_instant(self._result.newest_ms)

    def _versions(self, block: Block) -> list[int | None] | None:
        """Return the version of each control record."""
        field = self._core.inputs[block.input].version
        return None if field is None else list(block.batch.column(field).to_pylist())

    def _run_records(
        self, records: Iterator[tuple[int, Any, Any]], process: Any, emitted: EmittedRecords
    ) -> None:
        """Run the innermost loop, which only uses local variables."""
        context = self._context
        cursor = self._instance.cursor
        undo = cursor.undo
        append, append_row = emitted.records.append, emitted.rows.append
        for row, key, record in records:
            cursor.key = key
            result = process(record, context)
            if result is not None:
                for item in result:
                    append(item)
                    append_row(row)
            if undo:
                undo.clear()

    def _run_timed_records(
        self,
        records: Iterator[tuple[int, Any, Any]],
        process: Any,
        emitted: EmittedRecords,
        moments: list[_Moment],
    ) -> None:
        """Run the same loop for records that need their event time set, which may be in a separate column."""
        context = self._context
        cursor = self._instance.cursor
        undo = cursor.undo
        append, append_row = emitted.records.append, emitted.rows.append
        for row, key, record in records:
            cursor.key = key
            cursor.time, cursor.clock_ms, cursor.time_ms = moments[row]
            result = process(record, context)
            if result is not None:
                for item in result:
                    append(item)
                    append_row(row)
            if undo:
                undo.clear()

    def _run_controls(
        self,
        records: Iterator[tuple[int, Any, Any]],
        process: Any,
        emitted: EmittedRecords,
        times: list[dt.datetime | None] | None,
        versions: list[int | None] | None,
    ) -> None:
        """Run the same loop for control records with a time or a version."""
        cursor = self._instance.cursor
        for row, key, record in records:
            cursor.key = key
            cursor.time = None if times is None else times[row]
            self._instance.note_version(None if versions is None else versions[row])
            for item in process(record, self._context) or ():
                emitted.records.append(item)
                emitted.rows.append(row)
                if self._core.stamped:
                    emitted.versions.append(self._instance.version())
            cursor.undo.clear()

    def _emit(
        self, block: Block | FiredTimers, keys: pa.Array, emitted: EmittedRecords, stamps: Stamps | None
    ) -> None:
        if emitted.records:
            self._emit_records(block, keys, MAIN, emitted.records, emitted.rows, stamps)
        for name in dict.fromkeys(name for _, name, _ in emitted.side):
            found = [(row, item) for row, output, item in emitted.side if output == name]
            self._emit_records(block, keys, name, [item for _, item in found], [row for row, _ in found])

    def _emit_records(
        self,
        block: Block | FiredTimers,
        keys: pa.Array,
        output: str,
        records: list[Any],
        rows: list[int],
        stamps: Stamps | None = None,
    ) -> None:
        output_type = self._core.outputs.get(output)
        if output_type is None:
            for row in rows:
                self._dead_letter(
                    block, row, f"step {self._core.step!r} emitted a record but declares no output"
                )
            return
        try:
            batch = output_type.batch(records)
        except SchemaError:
            records, rows, misfits = split_fitting(output_type, records, rows)
            for row, reason in misfits:
                self._dead_letter(block, row, reason)
            batch = output_type.batch(records)
        if stamps is not None:
            batch = stamps.stamp(batch, rows, self._instance)
        if records:
            times = row_times(block, self._core) if output in self._core.timed else None
            causes = causes_in(block) if output in self._core.caused else None
            if not are_all_rows(rows, len(keys)):
                picked = pa.array(rows, pa.int64())
                columns = (keys, times, causes)
                keys, times, causes = (None if one is None else one.take(picked) for one in columns)
            self._result.emissions.append(Emission(output, batch, keys, times, causes))

    def _dead_letter(self, block: Block | FiredTimers, row: int, reason: str) -> None:
        if isinstance(block, FiredTimers):
            self._result.dead_letters.append(block.dead_letter(row, reason))
            return
        source = self._core.inputs[block.input]
        offset = block.batch.column(OFFSET)[row].as_py()
        raw = raw_bytes(block.column(RAW), block.batch, row, source.record_type)
        letter = DeadLetter(reason, block.stream, self._core.step, block.partition, offset, raw)
        self._result.dead_letters.append(letter)

    # -- batch by batch --

    def _run_per_batch(self, block: Block) -> None:
        """Run `process_batch`. If it raises, halve the batch until each failing record is isolated."""
        source = self._core.inputs[block.input]
        keys = self._keys(block)
        slots = self._group.slots_of(keys)
        names = list(source.record_type.field_names)
        records = block.batch.select(names)
        times = row_times(block, self._core) if self._core.timed else None
        causes = causes_in(block) if self._core.caused else None
        cursor = self._instance.cursor
        known = self._group.keys
        if len(records) and not self._core.has_key:
            # All records belong to one part, whose states the code accesses like code for single records.
            cursor.key = key_values(keys.slice(0, 1))[0]
            known = pa.nulls(1, known.type)

        def work(low: int, high: int) -> None:
            columns = self._state.columns.values()
            before = [column.snapshot() for column in columns]
            count = high - low
            part = records.slice(low, count)
            context = BatchContext(part, slots[low:high], known, block.stream, self._context.key_group)
            try:
                of_rows = (
                    keys.slice(low, count),
                    None if times is None else times.slice(low, count),
                    None if causes is None else causes.slice(low, count),
                )
                emissions = self._run_batch(part, context, of_rows)
            except Exception:  # user code may raise anything
                cursor.take_back()
                for column, snapshot in zip(columns, before, strict=True):
                    column.restore(snapshot)
                raise
            cursor.undo.clear()
            self._result.emissions += emissions

        if len(records):
            work_by_halves(
                len(records), work, lambda row, error: self._dead_letter(block, row, reason_of(error))
            )

    def _run_batch(self, records: pa.RecordBatch, context: BatchContext, of_rows: _OfRows) -> list[Emission]:
        returned = self._function.process_batch(records, context)
        found = list(context.emitted)
        if returned is not None:
            batch, rows = returned if isinstance(returned, tuple) else (returned, None)
            found.insert(0, (MAIN, batch, rows))
        return [self._emission(name, batch, rows, of_rows) for name, batch, rows in found if batch.num_rows]

    def _emission(
        self, output: str, batch: pa.RecordBatch, rows: npt.NDArray[np.int64] | None, of_rows: _OfRows
    ) -> Emission:
        keys, times, causes = of_rows
        output_type = self._core.outputs.get(output)
        if output_type is None:
            raise ValueError(f"the output {output or 'main'!r} is not declared by step {self._core.step!r}")
        fitted = conform_batch(output_type, batch, rows, len(keys))
        picked = None if rows is None else pa.array(rows)
        taken = keys if picked is None else keys.take(picked)
        if self._core.stamped and output == MAIN:
            fitted = Stamps(key_values(taken), None).stamp(fitted, range(len(taken)), self._instance)
        times = times if output in self._core.timed else None
        causes = causes if output in self._core.caused else None
        if picked is not None:
            times = None if times is None else times.take(picked)
            causes = None if causes is None else causes.take(picked)
        return Emission(output, fitted, taken, times, causes)
