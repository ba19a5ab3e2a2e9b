"""OVER aggregates: each row with aggregates of the rows before it in its group, by event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.event_times import times_ms
from penstock.operators.watermarks import END_MS
from penstock.operators.window_step import LATE
from penstock.records.types import RecordType, type_of_fields
from penstock.state.lists import ListState, elements, offsets_of_lengths
from penstock.state.timeline import Domain
from penstock.state.values import ValueState
from penstock.tables.bound_aggregates import BoundAggregate
from penstock.tables.state_names import state_names
from penstock.tables.table_step import TableInput, TableResult, TableStep
from penstock.tables.value_order import order_codes

__all__ = ["Frame", "OverRows", "over_rows"]

Ints = npt.NDArray[np.int64]

_WAITING: Final = "waiting"
_PAST: Final = "past"
_COUNT: Final = "group_rows"
# This many pairs of a row and a row of its frame are processed together.
_PAIRS: Final = 1 << 20
_LAST_MS: Final = END_MS // 1000


@dataclass(frozen=True)
class Frame:
    """The rows before a row that its aggregates include besides itself: a number of rows, or those within some time.

    With neither, all of them. Rows of the same time are before each other if the frame is a time, or everything.
    """

    rows: int | None = None
    range_ms: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether rows leave the frame."""
        return self.rows is not None or self.range_ms is not None


class OverRows(TableStep):
    """Each row of a group with aggregates of a frame, once the watermark has passed it.

    Rows wait until then, so their order does not depend on when they arrive. `over_rows` declares the states.
    """

    waiting_state = _WAITING

    def __init__(
        self,
        rows: RecordType,
        given: RecordType,
        time: str,
        aggregates: Sequence[BoundAggregate],
        names: Mapping[str, str],
        frame: Frame,
    ) -> None:
        self._rows: Final = rows
        self._given: Final = given
        self._time: Final = time
        self._aggregates: Final = tuple(aggregates)
        self._names: Final = dict(names)
        self._frame: Final = frame
        self.output = type_of_fields([*rows.fields, *(one.result for one in aggregates)])

    def earliest(self, rows: pa.RecordBatch, domain: Domain) -> tuple[Ints, pa.Array]:
        """Return when the first waiting row of each key is due, or its last past row leaves every frame."""
        keys = rows.column(0)
        if domain != "event":
            return np.empty(0, np.int64), keys.slice(0, 0)
        due = np.full(len(keys), _LAST_MS, np.int64)
        waiting = rows.column(_WAITING)
        slots, times = self._times_of(waiting)
        np.minimum.at(due, slots, times)
        if self._frame.range_ms is not None:
            slots, times = self._times_of(rows.column(_PAST))
            ends = np.full(len(keys), -_LAST_MS, np.int64)
            np.maximum.at(ends, slots, times + self._frame.range_ms + 1)
            due = np.where(ends > -_LAST_MS, np.minimum(due, ends), due)
        found = np.flatnonzero(due < _LAST_MS)
        return np.clip(due[found], -_LAST_MS, _LAST_MS) * 1000, keys.take(pa.array(found))

    def _times_of(self, lists: pa.Array) -> tuple[Ints, Ints]:
        slots = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
        return slots, times_ms(pc.struct_field(pc.list_flatten(lists), self._time))[0]

    # -- rows come --

    def update(self, given: TableInput) -> TableResult:
        """Let rows wait; those that are late go to the side output."""
        stored = given.stored[_WAITING]
        assert given.times_ms is not None
        is_late = np.zeros(len(given.slots), bool)
        if given.watermark_ms is not None:
            is_late = given.times_ms <= given.watermark_ms
        fresh = np.flatnonzero(~is_late)
        kind = stored.type.value_type
        picked = pa.array(fresh)
        columns = [given.batch.column(field.name).take(picked) for field in kind]
        new = pa.StructArray.from_arrays(columns, fields=list(kind))
        slots, _ = self._times_of(stored)
        waiting = _Lists(np.concatenate([slots, given.slots[fresh]]), pa.concat_arrays([_flat(stored), new]))
        result = TableResult(
            None, np.empty(0, np.int64), {_WAITING: waiting.to_arrow(len(stored), stored.type)}
        )
        late = np.flatnonzero(is_late)
        if len(late):
            result.side[LATE] = late
        return result

    # -- the watermark passes --

    def advance(self, given: TableInput, watermark_ms: int) -> TableResult:
        """Emit the rows that the watermark has passed, in the order of time, and forget what leaves every frame."""
        stored = given.stored[_WAITING]
        slots, times = self._times_of(stored)
        rows = _flat(stored)
        is_due = times <= watermark_ms
        due = np.flatnonzero(is_due)
        codes = [order_codes(column) for column in rows.take(pa.array(due)).flatten()]
        order = np.lexsort([*codes[::-1], times[due], slots[due]])
        due = due[order]
        found = _Due(rows.take(pa.array(due)), slots[due], times[due])
        rest = np.flatnonzero(~is_due)
        states = {_WAITING: _Lists(slots[rest], rows.take(pa.array(rest))).to_arrow(len(stored), stored.type)}
        if self._frame.is_bounded:
            results = self._frames(found, given.stored[_PAST], states, watermark_ms)
        else:
            results = self._running(found, given.stored, states)
        if not len(due):
            return TableResult(None, found.slots, states)
        columns = [pc.struct_field(found.rows, name) for name in self._rows.field_names]
        columns += [
            result.cast(one.result.arrow_type) for one, result in zip(self._aggregates, results, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.output.schema)
        in_time = np.argsort(found.times, kind="stable")
        return TableResult(batch.take(pa.array(in_time)), found.slots[in_time], states, found.times[in_time])

    def _frames(
        self, due: _Due, stored: pa.Array, states: dict[str, pa.Array], watermark_ms: int
    ) -> list[pa.Array]:
        """Return the aggregates of the frame of each row, and put the rows that later frames need into `states`."""
        kind = stored.type.value_type
        past_slots, past_times = self._times_of(stored)
        columns = [pc.struct_field(due.rows, field.name) for field in kind]
        new = pa.StructArray.from_arrays(columns, fields=list(kind))
        slots = np.concatenate([past_slots, due.slots])
        # Past rows of a group come first. They are in order, and none is later than a due one.
        order = np.argsort(slots, kind="stable")
        slots, times = slots[order], np.concatenate([past_times, due.times])[order]
        rows = pa.concat_arrays([_flat(stored), new]).take(pa.array(order))
        lows, highs = self._bounds(slots, times)
        is_due = order >= len(past_slots)
        results = self._of_frames(rows, lows[is_due], highs[is_due])
        if self._frame.rows is not None:
            ends = np.searchsorted(slots, slots, side="right")
            kept = np.arange(len(slots)) >= ends - self._frame.rows
        else:
            assert self._frame.range_ms is not None
            kept = times >= min(watermark_ms, _LAST_MS) + 1 - self._frame.range_ms
        places = np.flatnonzero(kept)
        states[_PAST] = _Lists(slots[places], rows.take(pa.array(places))).to_arrow(len(stored), stored.type)
        return results

    def _bounds(self, slots: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Return the first row of each row's frame, and the one after its last; rows are sorted by group and time."""
        places = np.arange(len(slots))
        if self._frame.rows is not None:
            starts = np.searchsorted(slots, slots, side="left")
            return np.maximum(starts, places - self._frame.rows), places + 1
        assert self._frame.range_ms is not None
        known = np.unique(times)
        codes = slots * (len(known) + 1)
        of_times = codes + np.searchsorted(known, times)
        firsts = codes + np.searchsorted(known, times - self._frame.range_ms)
        return np.searchsorted(of_times, firsts, "left"), np.searchsorted(of_times, of_times, "right")

    def _of_frames(self, rows: pa.Array, lows: Ints, highs: Ints) -> list[pa.Array]:
        """Return the aggregates of rows `lows` to `highs`, some frames at a time."""
        found: list[list[pa.Array]] = [[] for _ in self._aggregates]
        batch = pa.RecordBatch.from_struct_array(rows)
        ends = np.cumsum(highs - lows)
        begin = 0
        while begin < len(lows) or not found[0]:
            limit = (ends[begin - 1] if begin else 0) + _PAIRS
            end = max(int(np.searchsorted(ends, limit, side="right")), min(begin + 1, len(lows)))
            lengths = highs[begin:end] - lows[begin:end]
            places = np.repeat(np.arange(end - begin), lengths)
            offsets = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            pairs = np.repeat(lows[begin:end], lengths) + offsets
            for one, results in zip(self._aggregates, found, strict=True):
                if one.accumulator is None:
                    results.append(pa.array(lengths))
                    continue
                opened = one.accumulator.open(
                    pa.nulls(end - begin, one.accumulator.state().spec().arrow_type)
                )
                picked = pa.array(pairs)
                opened.add(one.given_of(batch, places, picked))
                results.append(opened.results())
            begin = end
            if begin >= len(lows):
                break
        return [pa.concat_arrays(results) for results in found]

    def _running(
        self, due: _Due, stored: Mapping[str, pa.Array], states: dict[str, pa.Array]
    ) -> list[pa.Array]:
        """Return the aggregates of all rows up to each row and those of its time, one time after the other."""
        groups = len(stored[_COUNT])
        counts = stored[_COUNT].fill_null(0).to_numpy(zero_copy_only=False).copy()
        opened = [
            None if one.accumulator is None else one.accumulator.open(stored[self._names[one.name]])
            for one in self._aggregates
        ]
        batch = pa.RecordBatch.from_struct_array(due.rows)
        rounds = _time_rounds(due.slots, due.times)
        found: list[list[pa.Array]] = [[] for _ in self._aggregates]
        for rows in rounds:
            slots, picked = due.slots[rows], pa.array(rows)
            counts += np.bincount(slots, minlength=groups)
            for one, state, results in zip(self._aggregates, opened, found, strict=True):
                if state is None:
                    results.append(pa.array(counts[slots]))
                else:
                    state.add(one.given_of(batch, slots, picked))
                    results.append(state.results().take(pa.array(slots)))
        holds = counts > 0
        states[_COUNT] = pa.array(counts, mask=~holds)
        for one, state in zip(self._aggregates, opened, strict=True):
            if state is not None:
                states[self._names[one.name]] = state.to_arrow(holds)
        if not rounds:
            return []
        back = pa.array(np.argsort(np.concatenate(rounds), kind="stable"))
        return [pa.concat_arrays(results).take(back) for results in found]


@dataclass(frozen=True)
class _Due:
    """The rows that are due, sorted by group and time."""

    rows: pa.Array
    slots: Ints
    times: Ints


@dataclass(frozen=True)
class _Lists:
    """Rows with the group of each."""

    slots: Ints
    rows: pa.Array

    def to_arrow(self, groups: int, kind: pa.DataType) -> pa.Array:
        """Return them as a list for each group, in their order."""
        order = pa.array(np.argsort(self.slots, kind="stable"))
        lengths = np.bincount(self.slots, minlength=groups)
        return pa.ListArray.from_arrays(offsets_of_lengths(lengths), self.rows.take(order)).cast(kind)


def _flat(lists: pa.Array) -> pa.Array:
    return elements(lists) if len(lists) else pa.array([], lists.type.value_type)


def _time_rounds(slots: Ints, times: Ints) -> list[Ints]:
    """Return the rows of the first time of each group, then those of the second, and so on. Rows are sorted."""
    if not len(slots):
        return []
    is_group = np.concatenate([[True], slots[1:] != slots[:-1]])
    is_time = is_group | np.concatenate([[True], times[1:] != times[:-1]])
    number = np.cumsum(is_time)
    starts = number[np.flatnonzero(is_group)]
    rounds = number - np.repeat(starts, np.diff(np.append(np.flatnonzero(is_group), len(slots))))
    order = np.argsort(rounds, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(rounds[order])) + 1)


def over_rows(
    rows: RecordType, given: RecordType, time: str, aggregates: Sequence[BoundAggregate], frame: Frame
) -> OverRows:
    """Return the function of a step. `given` are the rows with the arguments of aggregates, `time` their event time."""
    names = state_names([one for one in aggregates if one.accumulator is not None], OverRows)
    states: dict[str, Any] = {_WAITING: ListState(given)}
    if frame.is_bounded:
        wanted = {time} | {
            name for one in aggregates for name in (one.argument, one.order) if name is not None
        }
        states[_PAST] = ListState(type_of_fields([field for field in given.fields if field.name in wanted]))
    else:
        states[_COUNT] = ValueState(int)
        for one in aggregates:
            if one.accumulator is not None:
                states[names[one.name]] = one.accumulator.state()
    for name, state in states.items():
        state.name = name
    kind = type("OverRows", (OverRows,), {**states, "side_outputs": {LATE: rows}})
    found: OverRows = kind(rows, given, time, aggregates, names, frame)
    return found
