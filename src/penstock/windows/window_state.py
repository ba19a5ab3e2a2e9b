"""Window state: the open windows of a key as a hidden keyed state, and their stored form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UnstorableValueError
from penstock.records.types import CustomColumnCodec, RecordType
from penstock.state.lists import offsets_of, offsets_of_lengths, split_elements
from penstock.state.state_spec import StateSpec, value_spec
from penstock.state.values import BoundState, KeyedState
from penstock.windows.column_aggregates import HeldColumns
from penstock.windows.panes import OpenWindows, Pane
from penstock.windows.triggers import RECORD
from penstock.windows.window import Window

__all__ = [
    "WINDOWS",
    "BoundWindowState",
    "CheckedWindowState",
    "PaneColumns",
    "WindowState",
    "earliest_window_timers",
]

WINDOWS: Final = "@windows"
"""The column with the open windows of each key."""

Ints = npt.NDArray[np.int64]

_TIMES: Final = pa.list_(pa.int64())
_TIMERS: Final = {"event": "event_timers", "processing": "processing_timers"}


class WindowState(KeyedState):
    """The hidden state that holds the open windows of a key.

    Args:
        record: the type of the records in the windows.
        folded: the type of the value that records are folded into; None if all records are kept.
        trigger: the type of the trigger's state, as the trigger declares it.
        function: the type of the window function's state, as the function declares it.

    """

    def __init__(self, record: RecordType, folded: Any, trigger: Any, function: Any) -> None:
        self.name = WINDOWS
        self._form: Final = WindowsForm(
            None if folded is not None else value_spec("records", record.python_class),
            None if folded is None else value_spec("result", folded),
            None
            if trigger is None
            else value_spec("trigger", record.python_class if trigger == RECORD else trigger),
            None if function is None else value_spec("function", function),
        )

    def spec(self) -> StateSpec:
        """Return the stored form of the state: an Arrow list of windows."""
        return StateSpec(self.name, self._form, self._form.arrow_type, None)


class BoundWindowState(BoundState, KeyedState):
    """The open windows of a key group, bound to its stored values."""

    __slots__ = ()

    def of(self, key: Any) -> OpenWindows:
        """Return the open windows of a key, which are stored at the end of the run."""
        try:
            found = self._values[key]
        except KeyError:
            found = self._column.load(key)
        if found is None:
            found = self._values[key] = OpenWindows()
        windows: OpenWindows = found
        return windows

    @property
    def changed(self) -> dict[Any, None]:
        """The keys with changed windows that are not yet written back. Code that changes windows adds their key."""
        return self._dirty


class CheckedWindowState(BoundWindowState):
    """Open windows that are checked for storability whenever user code has changed them."""

    __slots__ = ()

    def check(self, windows: OpenWindows) -> None:
        """Raise UnstorableValueError when the windows of a key cannot be stored."""
        try:
            self._column.spec.python_type.to_arrow([windows])
        except Exception as e:  # users' values may raise anything when read
            raise UnstorableValueError(f"the state of the key's windows cannot be stored: {e}") from e


WindowState.run_time = (BoundWindowState, CheckedWindowState)


@dataclass(frozen=True)
class WindowsForm(CustomColumnCodec):
    """The codec of open windows as an Arrow list of structs; null for a key without windows."""

    record: StateSpec | None
    folded: StateSpec | None
    trigger: StateSpec | None
    function: StateSpec | None

    def parts(self) -> dict[str, StateSpec]:
        found = {
            "record": self.record,
            "result": self.folded,
            "trigger": self.trigger,
            "function": self.function,
        }
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def arrow_type(self) -> pa.DataType:
        """The stored type."""
        fields = [pa.field("start", pa.int64()), pa.field("end", pa.int64()), pa.field("count", pa.int64())]
        if self.folded is not None:
            fields.append(pa.field("result", self.folded.arrow_type))
        if self.record is not None:
            entry = pa.struct([pa.field("time", pa.int64()), pa.field("record", self.record.arrow_type)])
            fields.append(pa.field("records", pa.list_(entry)))
        if self.trigger is not None:
            fields.append(pa.field("trigger", self.trigger.arrow_type))
        if self.function is not None:
            fields.append(pa.field("function", self.function.arrow_type))
        fields += [
            pa.field("cleanup", pa.int64()),
            pa.field("event_timers", _TIMES),
            pa.field("processing_timers", _TIMES),
        ]
        return pa.list_(pa.struct(fields))

    def to_python(self, column: pa.Array) -> list[Any]:
        flat = pc.list_flatten(column)
        columns = {field.name: pc.struct_field(flat, field.name) for field in flat.type}
        windows = map(Window, columns["start"].to_pylist(), columns["end"].to_pylist())
        panes = [Pane() for _ in range(len(flat))]
        for pane, count, cleanup_ms, event, processing in zip(
            panes,
            columns["count"].to_pylist(),
            columns["cleanup"].to_pylist(),
            columns["event_timers"].to_pylist(),
            columns["processing_timers"].to_pylist(),
            strict=True,
        ):
            pane.count, pane.cleanup_ms = count, cleanup_ms
            pane.event_timers, pane.processing_timers = tuple(event or ()), tuple(processing or ())
        for pane, contents in zip(panes, self._contents(columns), strict=True):
            pane.contents = contents
        for spec, attribute in ((self.trigger, "trigger_state"), (self.function, "window_state")):
            if spec is not None:
                for pane, value in zip(panes, spec.to_python(columns[spec.name]), strict=True):
                    setattr(pane, attribute, value)
        pairs = list(zip(windows, panes, strict=True))
        return [None if found is None else OpenWindows.of(found) for found in split_elements(pairs, column)]

    def _contents(self, columns: dict[str, pa.Array]) -> list[Any]:
        if self.folded is not None:
            return self.folded.to_python(columns["result"])
        assert self.record is not None
        lists = columns["records"]
        flat = pc.list_flatten(lists)
        times = pc.struct_field(flat, "time").to_pylist()
        records = self.record.to_python(pc.struct_field(flat, "record"))
        entries = list(zip(times, records, strict=True))
        return list(split_elements(entries, lists))

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        panes: list[Pane] = []
        windows: list[Window] = []
        by_key: list[list[Window]] = []
        for value in values:
            found = {} if value is None else value.panes
            # Sorted, so that equal windows have the same stored form.
            ordered = sorted(found)
            windows += ordered
            panes += [found[window] for window in ordered]
            by_key.append(ordered)
        arrays = {
            "start": pa.array([window.start for window in windows], pa.int64()),
            "end": pa.array([window.end for window in windows], pa.int64()),
            "count": pa.array([pane.count for pane in panes], pa.int64()),
            "cleanup": pa.array([pane.cleanup_ms for pane in panes], pa.int64()),
            "event_timers": _stored_times([pane.event_timers for pane in panes]),
            "processing_timers": _stored_times([pane.processing_timers for pane in panes]),
        }
        if self.folded is not None:
            arrays["result"] = self.folded.to_arrow([pane.contents for pane in panes])
        if self.record is not None:
            arrays["records"] = self._entries(panes)
        if self.trigger is not None:
            arrays["trigger"] = self.trigger.to_arrow([pane.trigger_state for pane in panes])
        if self.function is not None:
            arrays["function"] = self.function.to_arrow([pane.window_state for pane in panes])
        fields = list(self.arrow_type.value_type)
        structs = pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
        return pa.ListArray.from_arrays(offsets_of(by_key), structs)

    def _entries(self, panes: list[Pane]) -> pa.Array:
        assert self.record is not None
        entries = [entry for pane in panes for entry in pane.contents or ()]
        times = pa.array([time_ms for time_ms, _ in entries], pa.int64())
        records = self.record.to_arrow([record for _, record in entries])
        structs = pa.StructArray.from_arrays([times, records], names=["time", "record"])
        return pa.ListArray.from_arrays(offsets_of([pane.contents for pane in panes]), structs)


@dataclass(frozen=True)
class PaneColumns:
    """The open windows of a column aggregate, one row each, ordered by the slot of the key and the bounds.

    `fired` is whether the end of the window has passed; `held` are the accumulators.
    """

    slots: Ints
    starts: Ints
    ends: Ints
    cleanups: Ints
    fired: npt.NDArray[np.bool_]
    counts: Ints
    held: HeldColumns

    @classmethod
    def of(cls, column: pa.Array, held: type[HeldColumns]) -> PaneColumns:
        """Return the windows of a stored column, with the row of the key as slot."""
        flat = pc.list_flatten(column)

        def ints(array: pa.Array) -> Ints:
            found: Ints = array.fill_null(0).to_numpy(zero_copy_only=False)
            return found

        ends = ints(pc.struct_field(flat, "end"))
        timers = [pc.struct_field(flat, name) for name in _TIMERS.values()]
        first = pc.coalesce(*(_first(lists) for lists in timers))
        return cls(
            pc.list_parent_indices(column).to_numpy().astype(np.int64),
            ints(pc.struct_field(flat, "start")),
            ends,
            ints(pc.struct_field(flat, "cleanup")),
            # Until a window has fired, its first timer is at its end.
            ints(first) != ends - 1,
            ints(pc.struct_field(flat, "count")),
            held.of(pc.struct_field(flat, "result")),
        )

    def take(self, rows: Ints) -> PaneColumns:
        """Return the windows of some rows."""
        return PaneColumns(
            self.slots[rows],
            self.starts[rows],
            self.ends[rows],
            self.cleanups[rows],
            self.fired[rows],
            self.counts[rows],
            self.held.take(rows),
        )

    def to_arrow(self, keys: int, kind: pa.DataType, *, by_event: bool) -> pa.Array:
        """Return the stored column for this number of keys."""
        fields = list(kind.value_type)
        result = next(field.type for field in fields if field.name == "result")
        timers = self._timers()
        none = pa.nulls(len(self.slots), _TIMES)
        arrays = {
            "start": pa.array(self.starts),
            "end": pa.array(self.ends),
            "count": pa.array(self.counts),
            "result": self.held.to_arrow(result, self.counts > 0),
            "cleanup": pa.array(self.cleanups),
            "event_timers": timers if by_event else none,
            "processing_timers": none if by_event else timers,
        }
        structs = pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
        return pa.ListArray.from_arrays(offsets_of_lengths(np.bincount(self.slots, minlength=keys)), structs)

    def _timers(self) -> pa.Array:
        """Return the timers of each window: its end, unless it has fired, and its cleanup, unless it is the same."""
        both = np.stack([self.ends - 1, self.cleanups], axis=1)
        wanted = np.stack([~self.fired, self.fired | (both[:, 0] != both[:, 1])], axis=1)
        offsets = np.concatenate([[0], np.cumsum(wanted.sum(axis=1))])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(both[wanted]))


def _stored_times(timers: list[tuple[int, ...]]) -> pa.Array:
    return pa.array([sorted(times) if times else None for times in timers], _TIMES)


def _first(lists: pa.Array) -> pa.Array:
    """Return the first element of each list, null for an empty list."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return pc.list_flatten(lists).take(pa.array(np.cumsum(lengths) - lengths, mask=lengths == 0))


def earliest_window_timers(rows: pa.RecordBatch, domain: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the due time of each key's first timer in a time domain, in microseconds since 1970, and the keys."""
    column = rows.column(WINDOWS)
    timers = pc.struct_field(pc.list_flatten(column), _TIMERS[domain])
    # From a timer to its window, and from the window to its key.
    keys = pc.list_parent_indices(column).to_numpy()[pc.list_parent_indices(timers).to_numpy()]
    at = pc.list_flatten(timers).to_numpy()
    found, firsts = np.unique(keys, return_index=True)
    earliest = np.minimum.reduceat(at, firsts) if len(found) else at
    limit = np.iinfo(np.int64).max // 1000
    # Processing-time timers fire after their millisecond: a record that arrives within it still finds its window open.
    behind_us = 1000 if domain == "processing" else 0
    return np.clip(earliest, -limit, limit - 1) * 1000 + behind_us, rows.column(0).take(pa.array(found))
