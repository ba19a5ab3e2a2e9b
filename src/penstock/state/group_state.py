"""The state of one step in one key group, as one run works on it: the rows of the keys that the run touches.

Rows are brought from the group's table when their keys are first named, so that a run costs by the keys it touches.
User code sees them in one of two ways: value by value under the current key, or as whole columns. Either view is built
when it is first used and written back to the rows by `flush`, so the two may take turns within a batch.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError, UnstorableValueError
from penstock.state.group_table import KEY_COLUMN, GroupTable, held_rows, sorted_by_key
from penstock.state.key_index import key_values
from penstock.state.values import StateColumns, StateSpec, Undo, take_back

__all__ = ["Cursor", "GroupState", "StateColumn", "state_schema"]


@dataclass(slots=True)
class Cursor:
    """Where per-record code is at the moment, and what to take back if it raises.

    `key` is the current key, None where code runs for a whole step. `time` is the event time by which values that have
    a history are read, and from which they hold when they are set; None is the cut.
    """

    key: Any
    undo: list[Undo]
    time: dt.datetime | None = None

    def take_back(self, keep: Callable[[dict[Any, Any]], bool] | None = None) -> None:
        """Undo what the current record has changed, but for values of which `keep` says so."""
        for undo in reversed(self.undo):
            if keep is None or not keep(undo[0]):
                take_back(undo)
        self.undo.clear()


class StateColumn:
    """One declared state, as a column aligned with the keys of a run (null: no value)."""

    def __init__(self, spec: StateSpec, owner: GroupState, stored: pa.Array) -> None:
        self.spec = spec
        self._owner = owner
        self.stored = stored
        self.values: dict[Any, Any] = {}
        self.dirty: dict[Any, None] = {}
        self._columns: StateColumns | None = None
        self._changed_slots: list[npt.NDArray[np.int64]] = []

    # -- value by value --

    def load(self, key: Any) -> Any:
        """The stored value of a key, remembered for the next time."""
        slot = self._owner.slot_of(key)
        value = None
        if self.stored[slot].is_valid:
            value = self.spec.to_python(self.stored.slice(slot, 1))[0]
        self.values[key] = value
        return value

    def preload(self) -> None:
        """Turn all stored values into Python objects at once: cheaper than one by one when most are used."""
        if self.values:
            return
        if self.stored.null_count == len(self.stored):
            self.values = dict.fromkeys(self._owner.index)
        else:
            self.values = dict(zip(self._owner.index, self.spec.to_python(self.stored), strict=True))

    def bring(self, rows: pa.Array) -> None:
        """Put stored values behind those that are there."""
        self.stored = pa.concat_arrays([self.stored, rows])

    # -- as columns --

    def columns(self) -> StateColumns:
        """The values of all keys of the run as NumPy columns."""
        if self._columns is None:
            self._columns = StateColumns.of_arrow(self.stored, self.spec)
        missing = len(self.stored) - len(self._columns)
        if missing:
            self._columns.extend(StateColumns.of_arrow(self.stored.slice(len(self._columns)), self.spec))
        return self._columns

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set the values of the keys in `slots`."""
        self.columns().put(slots, values)
        self._changed_slots.append(slots)

    def snapshot(self) -> tuple[StateColumns, int] | None:
        """The columns as they are now, for `restore`."""
        return None if self._columns is None else (self._columns.copy(), len(self._changed_slots))

    def restore(self, snapshot: tuple[StateColumns, int] | None) -> None:
        """Back to a snapshot."""
        if snapshot is None:
            self._columns, self._changed_slots = None, []
        else:
            self._columns = snapshot[0].copy()
            del self._changed_slots[snapshot[1] :]

    # -- back to the table --

    def check_value(self, value: Any) -> None:
        """Raise UnstorableValueError when a value cannot be stored."""
        try:
            self.spec.to_arrow([value])
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold {value!r}: {e}") from e

    def check_columns(self) -> None:
        """Raise UnstorableValueError when the columns hold what cannot be stored."""
        self._columns_to_arrow()

    def _columns_to_arrow(self) -> pa.Array:
        try:
            return self.columns().to_arrow()
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold a value: {e}") from e

    def flush_columns(self) -> list[npt.NDArray[np.int64]]:
        """Write changed columns back; returns the slots that changed."""
        changed = self._changed_slots
        if changed:
            self.stored = self._columns_to_arrow()
        self._columns, self._changed_slots = None, []
        return changed

    def flush_values(self, slots: Mapping[Any, int]) -> npt.NDArray[np.int64]:
        """Write changed values back; returns the slots that changed."""
        changed_slots = np.array([slots[key] for key in self.dirty], np.int64)
        if not self.dirty:
            return changed_slots
        try:
            changed = self.spec.to_arrow([self.values[key] for key in self.dirty])
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold a value: {e}") from e
        if len(changed_slots) == len(self.stored) and (np.diff(changed_slots) == 1).all():
            self.stored = changed
            self.dirty = {}
            return changed_slots
        places = np.arange(len(self.stored))
        places[changed_slots] = len(self.stored) + np.arange(len(changed_slots))
        self.stored = pa.concat_arrays([self.stored, changed]).take(pa.array(places))
        self.dirty = {}
        return changed_slots


class GroupState:
    """All states of one step in one key group, for one run. The table stays as it is; `changes` has what is to change.

    `keys` are the keys that the run has touched, in the order in which it did.
    """

    def __init__(self, specs: Sequence[StateSpec], table: GroupTable, cursor: Cursor | None = None) -> None:
        self._table = table
        self.cursor = cursor or Cursor(None, [])
        self.keys: pa.Array = pa.array([], table.schema.field(KEY_COLUMN).type)
        self._were_held = np.empty(0, bool)
        self._changed: list[npt.NDArray[np.int64]] = []
        self.columns: dict[str, StateColumn] = {
            spec.name: StateColumn(spec, self, pa.nulls(0, spec.arrow_type)) for spec in specs
        }
        self._index: dict[Any, int] | None = None

    @property
    def index(self) -> dict[Any, int]:
        """The slot of each key that was touched."""
        if self._index is None:
            self._index = dict(zip(key_values(self.keys), range(len(self.keys)), strict=True))
        return self._index

    def slot_of(self, key: Any) -> int:
        """The slot of a key."""
        slot = self.index.get(key)
        if slot is None:
            self._bring(pa.array([key], self.keys.type))
            slot = self.index[key]
        return slot

    def bring(self, keys: pa.Array) -> None:
        """Touch keys, which are many: cheaper than one by one. Their values are turned into Python objects, too."""
        new = self._untouched(keys)
        if len(new):
            self._bring(new)

    def preload(self) -> None:
        """Turn the values of all keys that were touched into Python objects, for per-record access."""
        for column in self.columns.values():
            column.preload()

    def settled_keys(self) -> list[Any]:
        """The keys of the group that hold a value, in order, with all that was changed written back, values at hand."""
        self.flush()
        self.bring(self._table.all_rows().column(0))
        self.preload()
        rows = self._rows()
        return key_values(sorted_by_key(rows.filter(pa.array(held_rows(rows)))).column(0))

    def keys_now(self) -> list[Any]:
        """The keys that hold or held a value, in order, with those behind that have just got one."""
        held = key_values(sorted_by_key(self._table.all_rows()).column(0))
        keys = dict.fromkeys(held)
        keys |= dict.fromkeys(key for key in self.index if self.has(key))
        return list(keys)

    def new_keys(self, keys: pa.Array) -> list[Any]:
        """Which of some keys the group holds nothing of, in order, each once."""
        found = dict.fromkeys(key_values(keys))
        self.bring(keys)
        return [key for key in found if not self.has(key)]

    def has(self, key: Any) -> bool:
        """Whether a key holds or held a value, or has just got one."""
        slot = self.slot_of(key)
        if self._were_held[slot] or any(key in column.dirty for column in self.columns.values()):
            return True
        return any(column.stored[slot].is_valid for column in self.columns.values())

    def slots_of(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """The slot of each key."""
        self.bring(keys)
        if pa.types.is_struct(keys.type):
            index = self.index
            return np.array([index[key] for key in key_values(keys)], np.int64)
        places = pc.index_in(keys, value_set=self.keys)
        slots: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
        return slots

    def flush(self) -> None:
        """Write what either view has changed back to the rows."""
        touched: dict[Any, None] = {}
        for column in self.columns.values():
            # What was set and taken back without having been looked at is as it was.
            column.dirty = {key: None for key in column.dirty if key in column.values}
            touched |= column.dirty
        new = [key for key in touched if key not in self.index]
        if new:
            self._bring(pa.array(new, self.keys.type))
        for column in self.columns.values():
            self._changed += column.flush_columns()
            self._changed.append(column.flush_values(self.index if column.dirty else {}))
            column.values = {}

    def changes(self) -> pa.RecordBatch | None:
        """The rows that are to be put into the table, or None when nothing has changed.

        A row without any value is of a key that holds nothing any more.
        """
        self.flush()
        slots = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
        if not len(slots):
            return None
        rows = self._rows()
        # A key that held nothing before and holds nothing now is no news.
        slots = slots[(held_rows(rows) | self._were_held)[slots]]
        if not len(slots):
            return None
        return rows if len(slots) == rows.num_rows else rows.take(pa.array(slots))

    def _rows(self) -> pa.RecordBatch:
        arrays = [self.keys, *(column.stored for column in self.columns.values())]
        return pa.RecordBatch.from_arrays(arrays, schema=self._table.schema)

    def _untouched(self, keys: pa.Array) -> pa.Array:
        """The keys that were not touched before, each once."""
        if pa.types.is_struct(keys.type):
            index = self.index
            return pa.array([key for key in dict.fromkeys(key_values(keys)) if key not in index], keys.type)
        keys = pc.unique(keys)
        if not len(self.keys):
            return keys
        return pc.filter(keys, pc.is_null(pc.index_in(keys, value_set=self.keys)))

    def _bring(self, new: pa.Array) -> None:
        places = self._table.find(new)
        rows = self._table.rows(places)
        if self._index is not None:
            start = len(self.keys)
            self._index.update(zip(key_values(new), range(start, start + len(new)), strict=True))
        self.keys = pa.concat_arrays([self.keys, new])
        self._were_held = np.concatenate([self._were_held, places >= 0])
        for name, column in self.columns.items():
            column.bring(rows.column(name))


def state_schema(key_type: pa.DataType, specs: Sequence[StateSpec]) -> pa.Schema:
    """The columns of the table of a step: the key, and each state."""
    columns = [pa.field(spec.name, spec.arrow_type) for spec in specs]
    return pa.schema([pa.field(KEY_COLUMN, key_type), *columns])
