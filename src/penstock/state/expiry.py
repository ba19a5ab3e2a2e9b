"""Expiry: a state with a time to live, and when each of its values expires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.instants import milliseconds_of
from penstock.records.types import CustomColumnCodec
from penstock.state.cursor import Cursor
from penstock.state.state_column import KeyRows, StateColumn
from penstock.state.state_columns import StateColumns
from penstock.state.state_spec import StateSpec
from penstock.state.stored_blocks import EXPIRES
from penstock.state.ttl import expires_at_ms
from penstock.state.undo import ABSENT

__all__ = ["NEVER", "ExpiringColumn", "expired_rows", "expires_name", "without_expired"]

NEVER: Final = 2**63 - 1
"""The in-memory expiry time of a value that never expires; it is stored as null."""

Times = npt.NDArray[np.int64]


def expires_name(state: str) -> str:
    """Return the name of the column with the expiry times of a state."""
    return state + EXPIRES


class ExpiringColumn(StateColumn):
    """One declared state with a time to live. Expired values are invisible.

    New expiry times are kept next to the values until the values are flushed, and are undone with them.
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
        # The expiry times of values touched one by one.
        self._touched: dict[Any, int] = {}
        # The slots that were touched as columns, with their expiry time; and the number of slots read, with theirs.
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
        """Return when a value that is touched now expires."""
        at_ms = self._clock_ms
        time = self._cursor.time
        if self._by_event and time is not None:
            at_ms = milliseconds_of(time)
        return NEVER if at_ms is None else expires_at_ms(self._ttl, at_ms)

    def _hide_gone(self, start: int) -> None:
        """Remove the expired values from slot `start` on."""
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
        """Append stored values that have not expired."""
        super().append_rows(rows)
        expires = rows.column(expires_name(self.spec.name)).fill_null(NEVER).to_numpy()
        start = len(self._expires)
        self._expires = np.concatenate([self._expires, expires])
        self._hide_gone(start)

    def reset(self) -> None:
        """Drop the Python objects; the rows hold their values."""
        self.values = _Watched(self)

    def materialise(self) -> None:
        """Turn all stored values into Python objects at once."""
        if not self.values:
            super().materialise()
            self.values = _Watched(self, self.values)

    def load(self, key: Any) -> Any:
        """Return the stored value of a key, and cache it."""
        return self.observe(key, super().load(key))

    def observe(self, key: Any, value: Any) -> Any:
        """Return a value as user code that reads it sees it; a read may extend its life."""
        if value is None:
            return None
        if self._by_event and self._is_gone(key):
            # The clock expires the value, not the record, so this is not undone.
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
        """Set the expiry time of a key's value after a write, or a read that keeps it alive."""
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
        """Return the later of two expiry times: a late record must not make a value expire earlier."""
        if before is ABSENT:
            slot = self._owner.index.get(key)
            before = NEVER if slot is None else int(self._expires[slot])
        return expires if before == NEVER else max(before, expires)

    # -- as columns --

    def columns(self) -> StateColumns:
        """Return the values of all keys of the run as NumPy columns for user code; this may extend their life."""
        found = super().columns()
        if self._on_read:
            self._read = (len(found), self._expires_now())
        return found

    def put(self, slots: Times, values: Any) -> None:
        """Set the values of the keys in `slots`."""
        super().put(slots, values)
        self._touched_slots.append((slots, self._expires_now()))

    def replace(self, stored: pa.Array, slots: Times) -> None:
        """Replace all values by a stored column, in which those of the keys in `slots` have changed."""
        super().replace(stored, slots)
        self._touched_slots.append((slots, self._expires_now()))

    def snapshot(self) -> Any:
        """Return a copy of the current columns, for `restore`."""
        return super().snapshot(), len(self._touched_slots), self._read

    def restore(self, snapshot: Any) -> None:
        """Return to a snapshot."""
        columns, touched, self._read = snapshot
        super().restore(columns)
        del self._touched_slots[touched:]

    # -- back to the table --

    def flush_columns(self) -> list[Times]:
        """Write changed columns back. Returns the changed slots."""
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
        """Write changed values and expiry times back. Returns the changed slots."""
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
        """Return the state's columns of the table."""
        none = (self._expires == NEVER) | ~self.stored.is_valid().to_numpy(zero_copy_only=False)
        return [self.stored, pa.array(self._expires, mask=none)]


class _Watched(dict[Any, Any]):
    """The values of an expiring column. The column is notified of each read by user code."""

    __slots__ = ("_column",)

    def __init__(self, column: ExpiringColumn, values: Mapping[Any, Any] | None = None) -> None:
        super().__init__(values or {})
        self._column = column

    def __getitem__(self, key: Any) -> Any:
        return self._column.observe(key, super().__getitem__(key))


class _Dirty(dict[Any, Any]):
    """The keys whose values user code has changed. The column is notified of each change."""

    __slots__ = ("_column",)

    def __init__(self, column: ExpiringColumn) -> None:
        super().__init__()
        self._column = column

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._column.touch(key)


def expired_rows(rows: pa.RecordBatch, clocks: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with an expired value; `clocks` has the current time of each state with a TTL."""
    gone = np.zeros(rows.num_rows, bool)
    for state, clock_ms in clocks.items():
        expired = pc.less_equal(rows.column(expires_name(state)), clock_ms).fill_null(fill_value=False)
        gone |= expired.to_numpy(zero_copy_only=False)
    return gone


def without_expired(rows: pa.RecordBatch, clocks: Mapping[str, int]) -> pa.RecordBatch:
    """Return the rows with expired values set to null."""
    for state, clock_ms in clocks.items():
        expired = pc.less_equal(rows.column(expires_name(state)), clock_ms).fill_null(fill_value=False)
        places = pa.array(np.arange(rows.num_rows), mask=expired.to_numpy(zero_copy_only=False))
        for name in (state, expires_name(state)):
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, rows.schema.field(number), rows.column(number).take(places))
    return rows
