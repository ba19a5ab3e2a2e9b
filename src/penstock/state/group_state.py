"""The state of one step in one key group during one run: the rows of the keys that the run touches.

Rows are loaded from the group's table when their keys are first used, so the cost of a run depends on the keys it
touches. User code has two views: value by value under the current key, or whole columns. Each view is built on first
use and written back to the rows by `flush`, so a batch may alternate between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.cursor import Cursor
from penstock.state.expiry import ExpiringColumn, expires_name
from penstock.state.group_table import KEY_COLUMN, Rows, held_rows, sorted_by_key
from penstock.state.key_index import MANY, distinct_keys, key_values
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec
from penstock.state.stored_blocks import RENAMED_FROM

__all__ = ["GroupState", "state_schema"]


class GroupState:
    """All states of one step in one key group, for one run. The table is not changed; `changes` returns the new rows.

    `keys` are the keys that the run has touched, in order of first use.
    """

    def __init__(self, specs: Sequence[StateSpec], table: Rows, cursor: Cursor | None = None) -> None:
        self._table = table
        self.cursor = cursor or Cursor(None, [])
        self.keys: pa.Array = pa.array([], table.schema.field(KEY_COLUMN).type)
        # Whether the table has a row for each key, and whether the row has a value that has not expired.
        self._were_held = np.empty(0, bool)
        self._were_seen = np.empty(0, bool)
        self._changed: list[npt.NDArray[np.int64]] = []
        self.columns: dict[str, StateColumn] = {
            spec.name: self._column(spec, pa.nulls(0, spec.arrow_type)) for spec in specs
        }
        self._expiring = any(spec.ttl is not None for spec in specs)
        self._index: dict[Any, int] | None = None

    def _column(self, spec: StateSpec, stored: pa.Array) -> StateColumn:
        if spec.ttl is None:
            return StateColumn(spec, self, stored)
        return ExpiringColumn(spec, self, stored, self.cursor)

    @property
    def index(self) -> dict[Any, int]:
        """The slot of each touched key."""
        if self._index is None:
            self._index = dict(zip(key_values(self.keys), range(len(self.keys)), strict=True))
        return self._index

    def slot_of(self, key: Any) -> int:
        """Return the slot of a key; this touches the key."""
        slot = self.index.get(key)
        if slot is None:
            self._load(pa.array([key], self.keys.type))
            slot = self.index[key]
        return slot

    def load_keys(self, keys: pa.Array) -> None:
        """Touch many keys at once, which is cheaper than one by one."""
        new = self._untouched(keys)
        if len(new):
            self._load(new)

    def materialise(self) -> None:
        """Convert the values of all touched keys to Python objects, for per-record access."""
        for column in self.columns.values():
            column.materialise()

    def settled_keys(self) -> list[Any]:
        """Flush all changes, and return the keys that have a value, in order; all values are materialised."""
        self.flush()
        self.load_keys(self._table.all_rows().column(0))
        self.materialise()
        rows = self._rows()
        return key_values(sorted_by_key(rows.filter(pa.array(held_rows(rows)))).column(0))

    def keys_now(self) -> list[Any]:
        """Return the keys that have or had a value, in order, followed by those that have just got one."""
        rows = sorted_by_key(self._table.all_rows()).column(0)
        held = key_values(rows)
        if self._expiring:
            self.load_keys(rows)
            held = [key for key in held if self._were_seen[self.index[key]]]
        keys = dict.fromkeys(held)
        keys |= dict.fromkeys(key for key in self.index if self.has(key))
        return list(keys)

    def new_keys(self, keys: pa.Array) -> list[Any]:
        """Return the keys for which the group has no state, in order, without duplicates."""
        self.load_keys(keys)
        return [key for key in distinct_keys(keys) if not self.has(key)]

    def has(self, key: Any) -> bool:
        """Return whether a key has or had a value, or has just got one."""
        slot = self.slot_of(key)
        if self._were_seen[slot] or any(key in column.dirty for column in self.columns.values()):
            return True
        return any(column.stored[slot].is_valid for column in self.columns.values())

    def slots_of(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """Return the slot of each key."""
        if pa.types.is_struct(keys.type):
            self.load_keys(keys)
            index = self.index
            return np.array([index[key] for key in key_values(keys)], np.int64)
        places = pc.index_in(keys, value_set=self.keys)
        if places.null_count:
            # Most runs have loaded all of their keys before.
            self.load_keys(keys)
            places = pc.index_in(keys, value_set=self.keys)
        slots: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
        return slots

    def objects_of(self, keys: pa.Array) -> list[Any]:
        """Return the keys of records; if there are many, equal keys are the same object as the one in the index.

        A dictionary finds a value faster by the same object, and making an object for each record takes longer.
        """
        if len(keys) < MANY or pa.types.is_struct(keys.type):
            return key_values(keys)
        slots = self.slots_of(keys)
        found: list[Any] = np.array(list(self.index), object)[slots].tolist()
        return found

    def flush(self) -> None:
        """Write the changes of both views back to the rows."""
        touched: dict[Any, None] = {}
        for column in self.columns.values():
            # A value that was set and undone without being loaded is unchanged.
            if not column.dirty.keys() <= column.values.keys():
                for key in [key for key in column.dirty if key not in column.values]:
                    del column.dirty[key]
            touched |= column.dirty
        if not touched.keys() <= self.index.keys():
            self._load(pa.array([key for key in touched if key not in self.index], self.keys.type))
        for column in self.columns.values():
            self._changed += column.flush_columns()
            self._changed.append(column.flush_values(self.index if column.dirty else {}))
            column.reset()

    def changes(self) -> pa.RecordBatch | None:
        """Return the rows to put into the table, or None if nothing has changed.

        A row without any value belongs to a key that no longer has state.
        """
        self.flush()
        slots = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
        if not len(slots):
            return None
        rows = self._rows()
        # A key without state before and after is not a change.
        slots = slots[(held_rows(rows) | self._were_held)[slots]]
        if not len(slots):
            return None
        return rows if len(slots) == rows.num_rows else rows.take(pa.array(slots))

    def _rows(self) -> pa.RecordBatch:
        arrays = [self.keys, *(array for column in self.columns.values() for array in column.arrays())]
        return pa.RecordBatch.from_arrays(arrays, schema=self._table.schema)

    def _untouched(self, keys: pa.Array) -> pa.Array:
        """Return the keys that were not touched before, without duplicates."""
        if pa.types.is_struct(keys.type):
            index = self.index
            return pa.array([key for key in distinct_keys(keys) if key not in index], keys.type)
        if len(keys) > 1:
            keys = pc.unique(keys)
        if not len(self.keys):
            return keys
        return pc.filter(keys, pc.is_null(pc.index_in(keys, value_set=self.keys)))

    def _load(self, new: pa.Array) -> None:
        held, rows = self._table.lookup(new)
        start = len(self.keys)
        if self._index is not None:
            self._index.update(zip(key_values(new), range(start, start + len(new)), strict=True))
        self.keys = pa.concat_arrays([self.keys, new]) if start else new
        self._were_held = np.concatenate([self._were_held, held])
        seen = np.zeros(len(new), bool)
        for column in self.columns.values():
            column.append_rows(rows)
            if self._expiring:
                seen |= column.stored.slice(start).is_valid().to_numpy(zero_copy_only=False)
        self._were_seen = np.concatenate([self._were_seen, seen if self._expiring else held])


def state_schema(key_type: pa.DataType, specs: Sequence[StateSpec]) -> pa.Schema:
    """Return the schema of a step's table: the key, each state, and the expiry times of states with a TTL."""
    columns = [pa.field(KEY_COLUMN, key_type)]
    for spec in specs:
        before = spec.renamed_from
        metadata = None if before is None else {RENAMED_FROM: before}
        columns.append(pa.field(spec.name, spec.arrow_type, metadata=metadata))
        if spec.ttl is not None:
            metadata = None if before is None else {RENAMED_FROM: expires_name(before)}
            columns.append(pa.field(expires_name(spec.name), pa.int64(), metadata=metadata))
    return pa.schema(columns)
