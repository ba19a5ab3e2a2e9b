"""Window joins: pair the records of a key that are in one window, or give all of them to a function."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.joins.held_rows import HeldRows, Ints, Mask, Sides
from penstock.joins.join_step import (
    END_OF_ROWS,
    Joined,
    JoinStep,
    JoinTimes,
    Problem,
    due_times,
    pair_with_none,
)
from penstock.joins.matching import SortedRows
from penstock.joins.pair_expressions import Pairs
from penstock.operators.error_reasons import misfit_reason, reason_of
from penstock.records.types import Field, RecordType
from penstock.state.key_index import key_values
from penstock.windows.assigners import GridWindows, SessionWindows
from penstock.windows.window import Window

__all__ = ["BOUNDS", "CoGroup", "JoinWindows", "WindowJoin"]

_TIME: Final = pa.timestamp("us", "UTC")
JoinWindows: TypeAlias = GridWindows | SessionWindows
# A record made by a function, the slot of its key, and its time.
_Made: TypeAlias = tuple[Any, int, int]

BOUNDS: Final = tuple(
    Field(name, dt.datetime, _TIME, nullable=False) for name in ("window_start", "window_end")
)
"""The fields of a window, next to those of both sides."""


@dataclass(frozen=True)
class _Entries:
    """Rows of one side in windows, one for each window of a row: the row's number, its slot, and the bounds."""

    rows: Ints
    slots: Ints
    starts: Ints
    ends: Ints

    def where(self, keep: Mask) -> _Entries:
        return _Entries(self.rows[keep], self.slots[keep], self.starts[keep], self.ends[keep])


class WindowJoin(JoinStep):
    """Joins the records of both sides that are in one window, when the watermark passes its end.

    Both sides have the same windows; sessions are those of the records of both together. A record is held once, until
    the last of its windows has ended.
    """

    def __init__(self, windows: JoinWindows, *arguments: Any) -> None:
        self.windows: Final = windows
        super().__init__(*arguments)

    def late(self, held: Sides, new: Sides, before_ms: int) -> tuple[Mask, Mask]:
        """Return which new records are in no window that is still open."""
        sides = (held[0].plus(new[0]), held[1].plus(new[1]))
        found = []
        for side, rows, entries in zip((0, 1), sides, self._entries(sides), strict=True):
            late = np.zeros(len(rows), bool)
            late[entries.rows] = True
            late[entries.rows[entries.ends - 1 > before_ms]] = False
            found.append(late[len(held[side]) :])
        return found[0], found[1]

    def join(self, held: Sides, new: Sides, times: JoinTimes, keys: pa.Array) -> Joined:
        """Emit the results of the windows that end, and drop the rows that are in no open window."""
        sides = (held[0].plus(new[0]), held[1].plus(new[1]))
        entries = self._entries(sides)
        before_ms = -END_OF_ROWS if times.before_ms is None else times.before_ms
        passed_ms = times.passed_ms
        fired = tuple(one.where((one.ends - 1 > before_ms) & (one.ends - 1 <= passed_ms)) for one in entries)
        batch, slots, at, problems = self._emitted((fired[0], fired[1]), sides, keys)
        keep = [np.zeros(len(side), bool) for side in sides]
        due = []
        for kept, one in zip(keep, entries, strict=True):
            is_open = one.ends - 1 > passed_ms
            kept[one.rows[is_open]] = True
            due.append((one.slots[is_open], one.ends[is_open] - 1))
        changed = [rows.slots for rows in new]
        changed += [side.slots[~kept] for side, kept in zip(sides, keep, strict=True)]
        return Joined(
            batch,
            slots,
            at,
            (sides[0].where(keep[0]), sides[1].where(keep[1])),
            due_times(len(keys), *due),
            np.unique(np.concatenate(changed)),
            problems,
        )

    def _entries(self, sides: Sides) -> tuple[_Entries, _Entries]:
        """Return the rows of both sides in their windows."""
        if isinstance(self.windows, SessionWindows):
            return self._sessions(sides)
        found = []
        for side in sides:
            starts, ends = self.windows.columns(side.times)
            rows = np.repeat(np.arange(len(side)), starts.shape[1])
            flat = _Entries(rows, side.slots[rows], starts.ravel(), ends.ravel())
            found.append(flat.where(flat.ends > flat.starts))
        return found[0], found[1]

    def _sessions(self, sides: Sides) -> tuple[_Entries, _Entries]:
        """Return the rows of both sides in the sessions that they make together."""
        assert isinstance(self.windows, SessionWindows)
        assert self.windows.gap_ms is not None
        gap_ms = self.windows.gap_ms
        slots = np.concatenate([side.slots for side in sides])
        times = np.concatenate([side.times for side in sides])
        order = np.lexsort((times, slots))
        slots, times = slots[order], times[order]
        begins = np.ones(len(slots), bool)
        # Sessions that touch are one, as in Flink.
        begins[1:] = (np.diff(slots) != 0) | (np.diff(times) > gap_ms)
        numbers = np.cumsum(begins) - 1
        firsts = np.flatnonzero(begins)
        lasts = np.append(firsts[1:], len(slots))[: len(firsts)] - 1
        starts, ends = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        starts[order] = times[firsts][numbers]
        ends[order] = times[lasts][numbers] + gap_ms
        cut = len(sides[0])
        return (
            _Entries(np.arange(cut), sides[0].slots, starts[:cut], ends[:cut]),
            _Entries(np.arange(len(sides[1])), sides[1].slots, starts[cut:], ends[cut:]),
        )

    def _emitted(
        self, fired: tuple[_Entries, _Entries], sides: Sides, keys: pa.Array
    ) -> tuple[pa.RecordBatch, Ints, Ints, list[Problem]]:
        """Return the records of windows that end, the slots of their keys, their times, and pairs without a record."""
        left, right = fired
        # The end of a window identifies it within a key.
        numbers, others = SortedRows(right.slots, right.ends, len(keys)).pairs(
            left.slots, left.ends, left.ends
        )
        pairs = self._pairs(left.rows[numbers], right.rows[others], left.starts[numbers], left.ends[numbers])
        mask, failures = self.expressions.true(pairs, sides, self.parameters())
        problems = self._problems(pairs, sides, failures)
        parts = [pairs.where(mask)]
        for side, (entries, met) in enumerate(zip(fired, (numbers[mask], others[mask]), strict=True)):
            if (self.keeps_left, self.keeps_right)[side]:
                lone = np.ones(len(entries.rows), bool)
                lone[met] = False
                alone = entries.where(lone)
                parts.append(self._pairs(*pair_with_none(alone.rows, side), alone.starts, alone.ends))
        pairs = _sort_pairs(parts, sides)
        batch, pairs, more = self.records(pairs, sides)
        return batch, pairs.slots(*sides), pairs.times, [*problems, *more]

    def _pairs(self, left: Ints, right: Ints, starts: Ints, ends: Ints) -> Pairs:
        bounds = {
            field.name: pa.array(at * 1000).cast(_TIME)
            for field, at in zip(BOUNDS, (starts, ends), strict=True)
        }
        return Pairs(left, right, ends - 1, bounds)


def _sort_pairs(parts: list[Pairs], sides: Sides) -> Pairs:
    """Return pairs of several kinds by the end of their windows and by key."""
    left = np.concatenate([part.left for part in parts])
    right = np.concatenate([part.right for part in parts])
    times = np.concatenate([part.times for part in parts])
    more = {
        name: pa.chunked_array([part.more[name] for part in parts]).combine_chunks() for name in parts[0].more
    }
    pairs = Pairs(left, right, times, more)
    order = np.lexsort((right, left, pairs.slots(*sides), times))
    taken = {name: column.take(pa.array(order)) for name, column in more.items()}
    return Pairs(left[order], right[order], times[order], taken)


class CoGroup(WindowJoin):
    """Gives the records of both sides in each window of a key to a function, when the window ends."""

    def __init__(
        self,
        windows: JoinWindows,
        kinds: tuple[RecordType, RecordType],
        function: Callable[[Any, Window, list[Any], list[Any]], Iterable[Any] | None],
        output: RecordType,
    ) -> None:
        self.function: Final = function
        self.output: Final = output
        super().__init__(windows, kinds, "full", None, {})

    @property
    def record_type(self) -> RecordType:
        """The type of the records that the function returns."""
        return self.output

    def _emitted(
        self, fired: tuple[_Entries, _Entries], sides: Sides, keys: pa.Array
    ) -> tuple[pa.RecordBatch, Ints, Ints, list[Problem]]:
        """Return the records that the function makes of each window, by the end of the window and by key."""
        values = key_values(keys)
        fired = (_by_time(fired[0], sides[0]), _by_time(fired[1], sides[1]))
        objects = [
            self._objects(side, entries, rows)
            for side, (entries, rows) in enumerate(zip(fired, sides, strict=True))
        ]
        bounds = [(entries.ends, entries.slots, entries.starts) for entries in fired]
        groups: dict[tuple[int, int, int], tuple[list[Any], list[Any]]] = {}
        for side, (ends, slots, starts) in enumerate(bounds):
            places = zip(ends.tolist(), slots.tolist(), starts.tolist(), strict=True)
            for place, record in zip(places, objects[side], strict=True):
                groups.setdefault(place, ([], []))[side].append(record)
        made: list[_Made] = []
        problems: list[Problem] = []
        for (end, slot, start), (left, right) in sorted(groups.items(), key=lambda group: group[0]):
            try:
                found = self.function(values[slot], Window(start, end), left, right)
                made += [(record, slot, end - 1) for record in found or ()]
            except Exception as e:  # user code may raise anything
                problems.append(_window_problem(values[slot], Window(start, end), reason_of(e)))
        try:
            batch = self.output.batch([record for record, _, _ in made])
        except SchemaError:
            made, misfits = self._fitting(made, values)
            problems += misfits
            batch = self.output.batch([record for record, _, _ in made])
        slots = np.array([slot for _, slot, _ in made], np.int64)
        return batch, slots, np.array([at for _, _, at in made], np.int64), problems

    def _objects(self, side: int, entries: _Entries, rows: HeldRows) -> list[Any]:
        kind = self.kinds[side]
        taken = rows.records.take(pa.array(entries.rows))
        return kind.objects(pa.RecordBatch.from_arrays(taken.flatten(), list(kind.field_names)))

    def _fitting(self, made: list[_Made], values: list[Any]) -> tuple[list[_Made], list[Problem]]:
        """Return the records that fit the declared type, and the others as problems."""
        kept, problems = [], []
        for record, slot, at in made:
            try:
                self.output.batch([record])
                kept.append((record, slot, at))
            except SchemaError as e:
                raw = msgspec.json.encode({"key": values[slot], "end": at + 1})
                problems.append(Problem(raw, misfit_reason(record, self.output, e)))
        return kept, problems


def _by_time(entries: _Entries, rows: HeldRows) -> _Entries:
    """Return entries by the time of their rows, then as they came."""
    order = np.argsort(rows.times[entries.rows], kind="stable")
    return _Entries(entries.rows[order], entries.slots[order], entries.starts[order], entries.ends[order])


def _window_problem(key: Any, window: Window, reason: str) -> Problem:
    """Return the dead letter of a window of a key."""
    return Problem(msgspec.json.encode({"key": key, "start": window.start, "end": window.end}), reason)
