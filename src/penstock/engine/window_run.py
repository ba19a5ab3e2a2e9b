"""Window runs: run a step with windows on the records of one key group, record by record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_run import GroupRun
from penstock.engine.step import MAIN, Emission
from penstock.errors import SchemaError
from penstock.operators.error_reasons import misfit_reason, reason_of
from penstock.operators.event_times import (
    EVENT_TIME,
    are_out_of_range,
    no_time_reason,
    out_of_range_reason,
    times_ms,
)
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.operators.watermarks import END_MS, INGESTION_TIME
from penstock.operators.window_step import LATE
from penstock.records.schemas import VERSION_FIELD
from penstock.records.types import RecordType
from penstock.state.group_state import GroupState
from penstock.state.key_index import key_values
from penstock.state.open_values import OpenValues
from penstock.windows.contexts import Clock
from penstock.windows.emissions import Emission as Pane
from penstock.windows.emissions import SideRecord
from penstock.windows.panes import TimerKind
from penstock.windows.window import MIN_TIME, Window
from penstock.windows.window_state import WINDOWS, BoundWindowState
from penstock.windows.window_timers import in_time_order

__all__ = ["WindowRun"]


class WindowRun(GroupRun):
    """One run of a step with windows in one key group: processing-time timers, records, event-time timers."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(instance, context, key_group, state)
        windows = self._core.windows
        assert windows is not None
        self._step: Final = windows
        self._operator: Final = windows.operator
        self._open: Final[BoundWindowState] = instance.states[WINDOWS]
        watermark_ms = instance.clock.watermark_ms
        self._clock: Final = Clock(MIN_TIME if watermark_ms is None else watermark_ms, instance.clock.now_ms)

    # -- data --

    def _run_data(self, data: list[Block]) -> None:
        for block in data:
            self._put(block)
        self._take_emitted()

    def _put(self, block: Block) -> None:
        """Put the records of a block into their windows. If code raises, undo its changes and add a dead letter."""
        source = self._core.inputs[block.input]
        keys = key_values(self._keys(block))
        times, is_untimely = self._times_ms(block)
        entries = zip(
            range(len(keys)), keys, times.tolist(), source.record_type.objects(block.batch), strict=True
        )
        cursor, clock, windows_of = self._instance.cursor, self._clock, self._open.of
        process, undo, changed = self._operator.process, cursor.undo, self._open.changed
        untimely = set(np.flatnonzero(is_untimely).tolist())
        for row in sorted(untimely):
            assert source.time is not None
            is_missing = not block.batch.column(source.time)[row].is_valid
            reason = no_time_reason(source.time) if is_missing else out_of_range_reason(int(times[row]))
            self._dead_letter(block, row, reason)
        row = -1
        while True:
            try:
                for row, key, time_ms, record in entries:
                    if row in untimely:
                        continue
                    cursor.key = key
                    windows = windows_of(key)
                    process(windows, key, time_ms, record, clock)
                    if windows.journal:
                        windows.journal.clear()
                        changed[key] = None
                    if undo:
                        undo.clear()
                break
            except Exception as e:  # user code may raise anything
                windows_of(keys[row]).commit()
                cursor.take_back()
                self._dead_letter(block, row, reason_of(e))

    def _times_ms(self, block: Block) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the time of each record, and a mask of invalid ones. Without event time, that of the micro-batch."""
        time = self._core.inputs[block.input].time
        if time is None or time == INGESTION_TIME:
            rows = block.batch.num_rows
            return np.full(rows, self._instance.clock.now_ms, np.int64), np.zeros(rows, bool)
        times, is_missing = times_ms(block.batch.column(time))
        if time == EVENT_TIME and not self._step.is_event_time:
            # These windows need no event time, so a record may lack one.
            times, is_missing = (
                np.where(is_missing, self._instance.clock.now_ms, times),
                np.zeros(len(times), bool),
            )
        return times, is_missing | are_out_of_range(times)

    # -- timers --

    def _fire(self, keys: pa.Array) -> None:
        self._fire_all("processing_timers", key_values(keys), self._clock.processing_ms - 1)

    def _fire_by_event(self, due: pa.Array) -> None:
        clock = self._instance.clock
        assert clock.after_ms is not None
        if clock.after_ms == clock.watermark_ms:
            # Timers for a time that has passed wait until the watermark advances.
            return
        self._clock.watermark_ms = clock.after_ms
        keys = [*key_values(due), *self._open.changed]
        self._fire_all("event_timers", keys, clock.after_ms)
        if clock.ends and self._step.is_by_clock:
            # Processing-time windows have no timers after their ends, so this loop ends.
            self._fire_all("processing_timers", keys, END_MS)

    def _fire_all(self, kind: TimerKind, keys: Sequence[Any], until_ms: int) -> None:
        """Fire due timers, in the order of time and key. A timer that raises is used up, and leaves a dead letter."""
        cursor = self._instance.cursor
        found = [(key, self._open.of(key)) for key in sorted(dict.fromkeys(keys))]
        for key, windows in in_time_order(kind, found, until_ms):
            cursor.key = key
            try:
                self._operator.fire_timer(kind, windows, key, self._clock)
            except Exception as e:  # user code may raise anything
                cursor.take_back()
                self._add_window_letter(key, None, reason_of(e))
            windows.commit()
            cursor.undo.clear()
            self._open.changed[key] = None
        self._take_emitted()

    # -- emissions --

    def _take_emitted(self) -> None:
        """Take over the emissions of the windows, and the counts of records by outcome."""
        emitted = self._operator.emitted
        if emitted.panes:
            self._emit_panes(emitted.panes)
        if emitted.late:
            keys = pa.array([late.key for late in emitted.late], self._core.key_type)
            batch = self._step.record_type.batch([late.record for late in emitted.late])
            times = self._output_times(LATE, [late.time_ms for late in emitted.late])
            self._result.emissions.append(Emission(LATE, batch, keys, times))
        for name in dict.fromkeys(one.name for one in emitted.side_outputs):
            self._emit_side_output(name, [one for one in emitted.side_outputs if one.name == name])
        self._count(emitted.in_windows, emitted.late_records, emitted.without_window)
        emitted.clear()

    def _count(self, in_windows: int, late: int, without_window: int) -> None:
        """Count records by outcome, each once. All other records are dead letters."""
        found = {"in_windows": in_windows, "late": late, "without_window": without_window}
        self._result.counts.update({what: count for what, count in found.items() if count})

    def _emit_panes(self, panes: list[Pane]) -> None:
        key_type = self._core.key_type
        try:
            batch, keys = self._step.output.batch(panes, key_type)
        except SchemaError:
            panes = self._keep_fitting_panes(panes)
            batch, keys = self._step.output.batch(panes, key_type)
        if not len(keys):
            return
        if self._core.stamped:
            batch = batch.append_column(VERSION_FIELD, self._versions_of(keys))
        times = self._output_times(MAIN, [pane.timestamp_ms for pane in panes for _ in pane.results])
        self._result.emissions.append(Emission(MAIN, batch, keys, times))

    def _output_times(self, output: str, times: list[int | None] | list[int]) -> pa.Array | None:
        """Return the event times of records emitted to an output; None if no later step uses them."""
        if output not in self._core.timed:
            return None
        if self._core.inputs[-1].time == INGESTION_TIME:
            times = [self._instance.clock.now_ms if at_ms is None else at_ms for at_ms in times]
        return pa.array(times, pa.int64())

    def _keep_fitting_panes(self, panes: list[Pane]) -> list[Pane]:
        """Return the emitted results that fit, one by one; the others become dead letters."""
        kept = []
        for pane in panes:
            for result in pane.results:
                one = pane._replace(results=[result])
                try:
                    self._step.output.batch([one], self._core.key_type)
                    kept.append(one)
                except SchemaError as e:
                    self._add_window_letter(
                        one.key, one.window, misfit_reason(result, self._step.output.record_type, e)
                    )
        return kept

    def _emit_side_output(self, name: str, found: list[SideRecord]) -> None:
        """Emit the records that fit to a side output; the others become dead letters."""
        kind = self._core.outputs[name]
        try:
            batch = kind.batch([one.record for one in found])
        except SchemaError:
            found = [one for one in found if self._fits(one, kind)]
            batch = kind.batch([one.record for one in found])
        if found:
            keys = pa.array([one.key for one in found], self._core.key_type)
            times = self._output_times(name, [one.timestamp_ms for one in found])
            self._result.emissions.append(Emission(name, batch, keys, times))

    def _fits(self, one: SideRecord, kind: RecordType) -> bool:
        try:
            kind.batch([one.record])
        except SchemaError as e:
            self._add_window_letter(one.key, one.window, misfit_reason(one.record, kind, e))
            return False
        return True

    def _versions_of(self, keys: pa.Array) -> pa.Array:
        """Return the control version under which each window fired."""
        cursor, versions = self._instance.cursor, []
        for key in key_values(keys):
            cursor.key = key
            versions.append(self._instance.version())
        return pa.array(versions, VERSION_FIELD.type)

    def _add_window_letter(self, key: Any, window: Window | None, reason: str) -> None:
        """Add the dead letter of a window."""
        fields = {"key": key}
        if window is not None:
            fields |= {"start": window.start, "end": window.end}
        raw = msgspec.json.encode(fields)
        self._result.dead_letters.append(DeadLetter(reason, WINDOWS, self._core.step, "", 0, raw))
