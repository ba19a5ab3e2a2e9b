"""State columns: one declared state for the keys of a run, value by value or as columns."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SchemaError, UnstorableValueError
from penstock.state.state_columns import StateColumns
from penstock.state.state_spec import StateSpec

__all__ = ["KeyRows", "StateColumn"]


class KeyRows(Protocol):
    """The positions of the rows of a run's keys."""

    @property
    def index(self) -> dict[Any, int]:
        """The slot of each touched key."""
        ...

    def slot_of(self, key: Any) -> int:
        """Return the slot of a key; this touches the key."""
        ...


class StateColumn:
    """One declared state, as a column aligned with the keys of a run; null means no value.

    `values` has the values that are Python objects, and `dirty` the keys of those that have changed. If values of the
    state are replaced, not changed in place, it has the value before the first change with each key.
    """

    def __init__(self, spec: StateSpec, owner: KeyRows, stored: pa.Array) -> None:
        self.spec = spec
        # The owner has this column. If each held the other, both would stay in memory until the cyclic collector runs.
        self._owner: KeyRows = weakref.proxy(owner)
        self.stored = stored
        self.values: dict[Any, Any] = {}
        self.dirty: dict[Any, Any] = {}
        self._columns: StateColumns | None = None
        self._changed_slots: list[npt.NDArray[np.int64]] = []
        self._replaced: list[npt.NDArray[np.int64]] = []

    # -- value by value --

    def load(self, key: Any) -> Any:
        """Return the stored value of a key, and cache it."""
        slot = self._owner.slot_of(key)
        value = None
        if self.stored[slot].is_valid:
            value = self.spec.to_python(self.stored.slice(slot, 1))[0]
        self.values[key] = value
        return value

    def materialise(self) -> None:
        """Convert all stored values to Python objects at once, which is cheaper if most of them are used."""
        if self.values:
            return
        if self.stored.null_count == len(self.stored):
            self.values = dict.fromkeys(self._owner.index)
        else:
            self.values = dict(zip(self._owner.index, self.spec.to_python(self.stored), strict=True))

    def append_rows(self, rows: pa.RecordBatch) -> None:
        """Append stored values."""
        stored = rows.column(self.spec.name)
        self.stored = pa.concat_arrays([self.stored, stored]) if len(self.stored) else stored

    def reset(self) -> None:
        """Drop the Python objects; the rows hold their values."""
        self.values = {}

    # -- as columns --

    def columns(self) -> StateColumns:
        """Return the values of all keys of the run as NumPy columns, for user code."""
        return self._current()

    def _current(self) -> StateColumns:
        if self._columns is None:
            self._columns = StateColumns.of_arrow(self.stored, self.spec)
        missing = len(self.stored) - len(self._columns)
        if missing:
            self._columns.extend(StateColumns.of_arrow(self.stored.slice(len(self._columns)), self.spec))
        return self._columns

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set the values of the keys in `slots`."""
        self._current().put(slots, values)
        self._changed_slots.append(slots)

    def snapshot(self) -> Any:
        """Return a copy of the current columns, for `restore`."""
        return None if self._columns is None else (self._columns.copy(), len(self._changed_slots))

    def restore(self, snapshot: Any) -> None:
        """Return to a snapshot."""
        if snapshot is None:
            self._columns, self._changed_slots = None, []
        else:
            self._columns = snapshot[0].copy()
            del self._changed_slots[snapshot[1] :]

    def replace(self, stored: pa.Array, slots: npt.NDArray[np.int64]) -> None:
        """Replace all values by a stored column, in which those of the keys in `slots` have changed."""
        self.stored = stored
        self.values = {}
        self._columns = None
        self._replaced.append(slots)

    # -- back to the table --

    def check_value(self, value: Any) -> None:
        """Raise UnstorableValueError if a value cannot be stored."""
        try:
            self.spec.to_arrow([value])
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold {value!r}: {e}") from e

    def check_columns(self) -> None:
        """Raise UnstorableValueError if the columns have a value that cannot be stored."""
        self._columns_to_arrow()

    def _columns_to_arrow(self) -> pa.Array:
        try:
            return self._current().to_arrow()
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold a value: {e}") from e

    def flush_columns(self) -> list[npt.NDArray[np.int64]]:
        """Write changed columns back. Returns the changed slots."""
        changed = self._changed_slots
        if changed:
            self.stored = self._columns_to_arrow()
        changed += self._replaced
        self._columns, self._changed_slots, self._replaced = None, [], []
        return changed

    def flush_values(self, slots: Mapping[Any, int]) -> npt.NDArray[np.int64]:
        """Write changed values back. Returns the changed slots."""
        changed_slots = np.fromiter(map(slots.__getitem__, self.dirty), np.int64, len(self.dirty))
        if not self.dirty:
            return changed_slots
        try:
            changed = self.spec.to_arrow(list(map(self.values.get, self.dirty)))
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold a value: {e}") from e
        if len(changed_slots) == len(self.stored) and (np.diff(changed_slots) == 1).all():
            self.stored = changed
            self.dirty.clear()
            return changed_slots
        places = np.arange(len(self.stored))
        places[changed_slots] = len(self.stored) + np.arange(len(changed_slots))
        self.stored = pa.concat_arrays([self.stored, changed]).take(pa.array(places))
        self.dirty.clear()
        return changed_slots

    def arrays(self) -> list[pa.Array]:
        """Return the state's columns of the table."""
        return [self.stored]
