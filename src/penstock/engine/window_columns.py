"""Window columns: the fast path for windows that aggregate a field, which processes columns.

The result equals that of `WindowRun`, on the same state and to the same bytes. `WindowRun` takes over in irregular
cases: a late record that fires its window again, windows from before a change of the size, values that are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.function_instance import FunctionInstance
from penstock.engine.step import MAIN, Emission
from penstock.engine.window_run import WindowRun
from penstock.operators.event_times import are_out_of_range
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block
from penstock.operators.watermarks import END_MS
from penstock.operators.window_step import LATE, ResultOutput, WindowStep
from penstock.state.group_state import GroupState
from penstock.state.key_index import key_values
from penstock.state.open_values import OpenValues
from penstock.windows.assigners import CumulativeWindows, GridWindows, SlidingWindows, TumblingWindows
from penstock.windows.column_aggregates import NEW, ColumnAggregate
from penstock.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger
from penstock.windows.window import MIN_TIME
from penstock.windows.window_functions import Aggregated
from penstock.windows.window_state import WINDOWS, PaneColumns

__all__ = ["WindowColumnsRun", "runs_as_columns"]

# Users' subclasses may assign windows differently.
_KNOWN: Final = (TumblingWindows.assign, SlidingWindows.assign, CumulativeWindows.assign)

# If the range of values is at most this many times their number, a table of the range finds them.
_DENSE: Final = 2

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def runs_as_columns(step: WindowStep) -> bool:
    """Return whether the windows of a step can be processed as columns."""
    spec, contents = step.spec, step.spec.contents
    return (
        isinstance(contents, Aggregated)
        and contents.function is None
        and isinstance(contents.aggregate, ColumnAggregate)
        and isinstance(spec.assigner, GridWindows)
        and type(spec.assigner).assign in _KNOWN
        and type(step.operator.trigger) in (EventTimeTrigger, ProcessingTimeTrigger)
        and (type(step.operator.trigger) is EventTimeTrigger) == spec.assigner.is_event_time
        and step.operator.evictor is None
    )


@dataclass(frozen=True)
class _Pairs:
    """Pairs of records and windows, in the order of the records: the key's slot, the window, the record's value."""

    slots: Ints
    starts: Ints
    ends: Ints
    values: npt.NDArray[Any]
    has_value: Mask


class WindowColumnsRun(WindowRun):
    """One run of a step with windows that aggregate a field, in one key group."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(instance, context, key_group, state)
        contents = self._step.spec.contents
        assert isinstance(contents, Aggregated)
        assert isinstance(contents.aggregate, ColumnAggregate)
        assert isinstance(self._step.output, ResultOutput)
        self._aggregate: Final = contents.aggregate
        self._output: Final = self._step.output
        assert isinstance(self._step.spec.assigner, GridWindows)
        self._assigner: Final = self._step.spec.assigner
        self._by_event: Final = self._assigner.is_event_time
        self._lateness_ms: Final = self._operator.lateness.value if self._by_event else 0
        # The open windows, and the column that holds them.
        self._known: tuple[pa.Array, PaneColumns] | None = None

    def _materialise(self) -> None:
        """Do nothing: columns are only converted to objects for irregular records."""

    # -- data --

    def _run_data(self, data: list[Block]) -> None:
        if data and not self._put_columns(data):
            super()._materialise()
            super()._run_data(data)
            self._flush()

    def _put_columns(self, data: list[Block]) -> bool:
        """Put records into their windows, and return True; in irregular cases, do nothing and return False."""
        keys = pa.concat_arrays([self._keys(block) for block in data])
        found = [self._times_ms(block) for block in data]
        times = np.concatenate([times for times, _ in found])
        with_values = self._aggregate.values([block.batch for block in data])
        if with_values is None or np.concatenate([is_untimely for _, is_untimely in found]).any():
            return False
        has_value, values = with_values
        slots = self._group.slots_of(keys)
        at = times if self._by_event else np.full(len(times), self._clock.processing_ms, np.int64)
        rows, starts, ends = self._assign(at)
        watermark_ms = self._clock.watermark_ms if self._by_event else MIN_TIME
        is_late = _cleanup(ends, self._lateness_ms) <= watermark_ms
        if (~is_late & (ends - 1 <= watermark_ms)).any():
            return False
        panes = self._panes()
        if not self._are_regular(panes):
            return False
        kept = ~is_late
        pairs = _Pairs(slots, starts, ends, values, has_value)
        if len(rows) != len(times) or is_late.any():
            places = rows[kept]
            pairs = _Pairs(slots[places], starts[kept], ends[kept], values[places], has_value[places])
        if len(pairs.slots) and not self._add(panes, pairs):
            return False
        self._count_records(data, keys, times, rows, kept)
        return True

    def _assign(self, at: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the windows of each record: its row, the start and the end, in the order of the assigner."""
        starts, ends = self._assigner.columns(at)
        # There is a column for each window that a record may have; start and end are equal where there is no window.
        rows = np.repeat(np.arange(len(at)), starts.shape[1])
        flat_starts, flat_ends = starts.ravel(), ends.ravel()
        there = flat_ends > flat_starts
        if there.all():
            return rows, flat_starts, flat_ends
        return rows[there], flat_starts[there], flat_ends[there]

    def _are_regular(self, panes: PaneColumns) -> bool:
        """Return whether all open windows match the current assigner and lateness."""
        fits = self._assigner.fit(panes.starts, panes.ends)
        return bool(fits.all() and (panes.cleanups == _cleanup(panes.ends, self._lateness_ms)).all())

    def _count_records(self, data: list[Block], keys: pa.Array, times: Ints, rows: Ints, kept: Mask) -> None:
        """Count the records by outcome, and emit those that are late."""
        taken = np.zeros(len(times), bool)
        taken[rows[kept]] = True
        assigned = np.zeros(len(times), bool)
        assigned[rows] = True
        watermark_ms = self._clock.watermark_ms if self._by_event else MIN_TIME
        is_behind = _cleanup(times + 1, self._lateness_ms) <= watermark_ms
        late = np.flatnonzero(~taken & (assigned | (is_behind if self._by_event else False)))
        without = int((~taken).sum()) - len(late)
        self._count(int(taken.sum()), len(late), without)
        if len(late):
            names = list(self._step.record_type.field_names)
            records = pa.concat_batches([block.batch.select(names) for block in data])
            places = pa.array(late)
            batch = records.take(places).cast(self._step.record_type.schema)
            late_times = pa.array(times[late]) if LATE in self._core.timed else None
            self._result.emissions.append(Emission(LATE, batch, keys.take(places), late_times))

    def _add(self, panes: PaneColumns, pairs: _Pairs) -> bool:
        """Add records to the open windows, opening new ones. Return False if columns cannot hold the sums."""
        slots = np.concatenate([panes.slots, pairs.slots])
        ends = np.concatenate([panes.ends, pairs.ends])
        # The end identifies a window within its key, since all windows are regular.
        known_ends, end_places = _distinct(ends)
        codes, places = _distinct(slots * len(known_ends) + end_places)
        old, new = places[: len(panes.slots)], places[len(panes.slots) :]
        before = np.full(len(codes), NEW, np.int64)
        before[old] = np.arange(len(old))
        all_starts = np.empty(len(codes), np.int64)
        all_starts[old], all_starts[new] = panes.starts, pairs.starts
        all_ends = known_ends[codes % len(known_ends)]
        valued, values = new, pairs.values
        if not pairs.has_value.all():
            valued, values = new[pairs.has_value], values[pairs.has_value]
        added = self._aggregate.add_all(panes.held.take(before), valued, values)
        if added is None:
            return False
        more = PaneColumns(
            codes // len(known_ends),
            all_starts,
            all_ends,
            _cleanup(all_ends, self._lateness_ms),
            np.zeros(len(codes), bool),
            np.bincount(new, minlength=len(codes)),
            added,
        )
        more.fired[old] = panes.fired
        more.counts[old] += panes.counts
        self._store(more, np.flatnonzero(np.bincount(pairs.slots)))
        return True

    @property
    def _column(self) -> Any:
        return self._state.columns[WINDOWS]

    def _panes(self) -> PaneColumns:
        """Return the open windows of all keys of the run."""
        stored = self._column.stored
        if self._known is None or self._known[0] is not stored:
            self._known = stored, PaneColumns.of(stored, self._aggregate.held)
        return self._known[1]

    def _store(self, panes: PaneColumns, changed: Ints) -> None:
        keys = len(self._group.keys)
        column = panes.to_arrow(keys, self._column.spec.arrow_type, by_event=self._by_event)
        self._column.replace(column, changed)
        self._known = column, panes
        self._instance.refresh()

    # -- timers --

    def _fire(self, keys: pa.Array) -> None:
        if not self._by_event and len(keys):
            self._fire_columns(self._clock.processing_ms - 1)

    def _fire_by_event(self, due: pa.Array) -> None:  # noqa: ARG002  # they are among the keys of the run
        clock = self._instance.clock
        assert clock.after_ms is not None
        if self._by_event and clock.after_ms != clock.watermark_ms:
            panes = self._panes()
            if (are_out_of_range(panes.starts) | are_out_of_range(panes.ends)).any():
                # Results with bounds out of range become dead letters.
                super()._materialise()
                super()._fire_by_event(self._group.keys)
                self._flush()
                return
            self._clock.watermark_ms = clock.after_ms
            self._fire_columns(clock.after_ms)
        elif not self._by_event and clock.ends:
            self._fire_columns(END_MS)

    def _fire_columns(self, until_ms: int) -> None:
        """Emit the windows that end, in the order of time and key, and remove those to clean up."""
        panes = self._panes()
        fires = ~panes.fired & (panes.ends - 1 <= until_ms) & (panes.counts > 0)
        if fires.any():
            self._emit_columns(panes.take(np.flatnonzero(fires)))
        gone = panes.cleanups <= until_ms
        if not (fires | gone).any():
            return
        np.logical_or(panes.fired, panes.ends - 1 <= until_ms, out=panes.fired)
        changed = np.unique(panes.slots[fires | gone])
        self._store(panes.take(np.flatnonzero(~gone)), changed)

    def _emit_columns(self, panes: PaneColumns) -> None:
        order = np.lexsort((self._ranks(panes.slots), panes.ends))
        panes = panes.take(order)
        keys = self._group.keys.take(pa.array(panes.slots))
        batch = self._output.columns(keys, panes.starts, panes.ends, self._aggregate.results(panes.held))
        times = pa.array(panes.ends - 1) if MAIN in self._core.timed else None
        self._result.emissions.append(Emission(MAIN, batch, keys, times))

    def _ranks(self, slots: Ints) -> Ints:
        """Return for each slot the rank of its key in sorted order."""
        keys = self._group.keys
        if pa.types.is_struct(keys.type):
            values = key_values(keys)
            order = np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
        else:
            order = pc.sort_indices(keys).to_numpy()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks[slots]


def _distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in order, and the place of each value among them."""
    least = int(values.min())
    width = int(values.max()) - least + 1
    if width > _DENSE * len(values):
        found, places = np.unique(values, return_inverse=True)
        return found, places
    # The range is small, so a table finds them without a sort.
    offsets = values - least
    is_there = np.zeros(width, bool)
    is_there[offsets] = True
    ranks = np.cumsum(is_there) - 1
    return np.flatnonzero(is_there) + least, ranks[offsets]


def _cleanup(ends: Ints, lateness_ms: int) -> Ints:
    """Return when windows are cleaned up: their last millisecond plus the lateness, at most the end of time."""
    last = np.iinfo(np.int64).max
    return np.where(ends - 1 > last - lateness_ms, last, ends - 1 + min(lateness_ms, last))
