"""Expiry: a state whose values are kept for a time, with when each of them expires."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.instants import EPOCH
from penstock.records.types import CustomColumnCodec
from penstock.state.cursor import Cursor
from penstock.state.state_column import KeyRows, StateColumn
from penstock.state.state_columns import StateColumns
from penstock.state.state_spec import StateSpec
from penstock.state.stored_blocks import EXPIRES
from penstock.state.ttl import expires_at_ms
from penstock.state.undo import ABSENT

__all__ = ["NEVER", "ExpiringColumn", "expires_name", "gone_rows", "without_expired"]

NEVER: Final = 2**63 - 1
"""When a value expires that does not, in memory; stored it is null."""

_MILLISECOND: Final = dt.timedelta(milliseconds=1)

Times = npt.NDArray[np.int64]


def expires_name(state: str) -> str:
    """The column that says when the values of a state expire."""
    return state + EXPIRES


class ExpiringColumn(StateColumn):
    """One declared state with a time to live. What has expired is not a value, to whoever looks.

    When something was touched, and so when it expires, is noted beside the values until these are flushed, and taken
    back with them.
    """

    def __init__(self, spec: StateSpec, owner: KeyRows, stored: pa.Array, cursor: Cursor) -> None:
        super().__init__(spec, owner, stored)
        assert spec.ttl is not None
        self._ttl: Final = spec.ttl
        self._by_event: Final = spec.ttl.time == "event"
        self._on_read: Final = spec.ttl.on == "read_and_write"
        self._may_be_empty: Final = isinstance(spec.python_type, CustomColumnCodec)
        self._cursor: Final = cursor
        self._expires: Times = np.empty(0, np.int64)
        # When values expire that were touched one by one.
        self._touched: dict[Any, int] = {}
        # Slots that were touched as columns, with when they expire; and how many were read, with when.
        self._touched_slots: list[tuple[Times, int]] = []
        self._read: tuple[int, int] | None = None
        self._gone: list[Times] = []
        self.dirty = _Dirty(self)
        self.reset()

    # -- the clock --

    @property
    def _clock_ms(self) -> int | None:
        return self._cursor.clock_ms if self._by_event else self._cursor.now_ms

    def _expires_now(self) -> int:
        """When a value expires that is touched now."""
        at_ms = self._clock_ms
        time = self._cursor.time
        if self._by_event and time is not None:
            at_ms = (time - EPOCH) // _MILLISECOND
        return NEVER if at_ms is None else expires_at_ms(self._ttl, at_ms)

    def _hide_gone(self, start: int) -> None:
        """Make those values from a slot on no values that have expired."""
        clock_ms = self._clock_ms
        if clock_ms is None:
            return
        gone = start + np.flatnonzero(self._expires[start:] <= clock_ms)
        if len(gone):
            mask = np.zeros(len(self.stored), bool)
            mask[gone] = True
            self.stored = self.stored.take(pa.array(np.arange(len(mask)), mask=mask))
            self._expires[gone] = NEVER
            self._gone.append(gone)

    # -- value by value --

    def append_rows(self, rows: pa.RecordBatch) -> None:
        """Put stored values behind those that are there, but for what has expired."""
        super().append_rows(rows)
        expires = rows.column(expires_name(self.spec.name)).fill_null(NEVER).to_numpy()
        start = len(self._expires)
        self._expires = np.concatenate([self._expires, expires])
        self._hide_gone(start)

    def reset(self) -> None:
        """Forget the Python objects, which are in the rows."""
        self.values = _Watched(self)

    def materialise(self) -> None:
        """Turn all stored values into Python objects at once."""
        if not self.values:
            super().materialise()
            self.values = _Watched(self, self.values)

    def load(self, key: Any) -> Any:
        """The stored value of a key, remembered for the next time."""
        return self.seen(key, super().load(key))

    def seen(self, key: Any, value: Any) -> Any:
        """What user code sees of a value that it looks at, which may keep it alive."""
        if value is None:
            return None
        if self._by_event and self._is_gone(key):
            # A fact of the clock and not of the record, so it is not taken back.
            self.values[key] = None
            self._touched[key] = NEVER
            dict.__setitem__(self.dirty, key, None)
            return None
        if self._on_read:
            self.touch(key)
        return value

    def _is_gone(self, key: Any) -> bool:
        clock_ms = self._cursor.clock_ms
        if clock_ms is None:
            return False
        expires = self._touched.get(key)
        if expires is None:
            expires = int(self._expires[self._owner.slot_of(key)])
        return expires <= clock_ms

    def touch(self, key: Any) -> None:
        """The value of a key is written, or kept alive by being read."""
        expires = self._expires_now()
        before = self._touched.get(key, ABSENT)
        held = self.values.get(key)
        if held is None or (self._may_be_empty and not held):
            expires = NEVER
        elif self._by_event:
            expires = self._later(key, before, expires)
        if before is ABSENT or before != expires:
            self._cursor.undo.append((self._touched, key, before))
            self._touched[key] = expires

    def _later(self, key: Any, before: Any, expires: int) -> int:
        """A record that comes late makes nothing expire earlier."""
        if before is ABSENT:
            slot = self._owner.index.get(key)
            before = NEVER if slot is None else int(self._expires[slot])
        return expires if before == NEVER else max(before, expires)

    # -- as columns --

    def columns(self) -> StateColumns:
        """The values of all keys of the run as NumPy columns, for user code, which may keep them alive."""
        found = super().columns()
        if self._on_read:
            self._read = (len(found), self._expires_now())
        return found

    def put(self, slots: Times, values: Any) -> None:
        """Set the values of the keys in `slots`."""
        super().put(slots, values)
        self._touched_slots.append((slots, self._expires_now()))

    def snapshot(self) -> Any:
        """The columns as they are now, for `restore`."""
        return super().snapshot(), len(self._touched_slots), self._read

    def restore(self, snapshot: Any) -> None:
        """Back to a snapshot."""
        columns, touched, self._read = snapshot
        super().restore(columns)
        del self._touched_slots[touched:]

    # -- back to the table --

    def flush_columns(self) -> list[Times]:
        """Write changed columns back; returns the slots that changed."""
        changed = super().flush_columns()
        if self._read is not None:
            count, expires = self._read
            held = self.stored.slice(0, count).is_valid().to_numpy(zero_copy_only=False)
            self._touched_slots.insert(0, (np.flatnonzero(held), expires))
        for slots, expires in self._touched_slots:
            before = self._expires[slots]
            latest = np.where(before == NEVER, expires, np.maximum(before, expires))
            self._expires[slots] = latest if self._by_event else expires
            changed.append(slots)
        self._touched_slots, self._read = [], None
        return changed

    def flush_values(self, slots: Mapping[Any, int]) -> Times:
        """Write changed values back, and what was kept alive; returns the slots that changed."""
        changed = super().flush_values(slots)
        if self._touched:
            index = self._owner.index
            touched = [(index[key], expires) for key, expires in self._touched.items() if key in index]
            places = np.array([slot for slot, _ in touched], np.int64)
            self._expires[places] = [expires for _, expires in touched]
            changed = np.concatenate([changed, places])
            self._touched.clear()
        if self._by_event:
            self._hide_gone(0)
        gone, self._gone = self._gone, []
        return np.concatenate([changed, *gone])

    def arrays(self) -> list[pa.Array]:
        """The columns of the table that the state takes."""
        none = (self._expires == NEVER) | ~self.stored.is_valid().to_numpy(zero_copy_only=False)
        return [self.stored, pa.array(self._expires, mask=none)]


class _Watched(dict[Any, Any]):
    """The values of an expiring column, which hears of each that user code looks at."""

    __slots__ = ("_column",)

    def __init__(self, column: ExpiringColumn, values: Mapping[Any, Any] | None = None) -> None:
        super().__init__(values or {})
        self._column = column

    def __getitem__(self, key: Any) -> Any:
        return self._column.seen(key, super().__getitem__(key))


class _Dirty(dict[Any, None]):
    """The keys whose values user code has changed. The column hears of each change."""

    __slots__ = ("_column",)

    def __init__(self, column: ExpiringColumn) -> None:
        super().__init__()
        self._column = column

    def __setitem__(self, key: Any, value: None) -> None:
        super().__setitem__(key, value)
        self._column.touch(key)


def gone_rows(rows: pa.RecordBatch, clocks: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Which rows have a value that has expired; `clocks` gives the time now for each state that expires."""
    gone = np.zeros(rows.num_rows, bool)
    for state, clock_ms in clocks.items():
        expired = pc.less_equal(rows.column(expires_name(state)), clock_ms).fill_null(fill_value=False)
        gone |= expired.to_numpy(zero_copy_only=False)
    return gone


def without_expired(rows: pa.RecordBatch, clocks: Mapping[str, int]) -> pa.RecordBatch:
    """The rows without the values that have expired."""
    for state, clock_ms in clocks.items():
        expired = pc.less_equal(rows.column(expires_name(state)), clock_ms).fill_null(fill_value=False)
        places = pa.array(np.arange(rows.num_rows), mask=expired.to_numpy(zero_copy_only=False))
        for name in (state, expires_name(state)):
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, rows.schema.field(number), rows.column(number).take(places))
    return rows
