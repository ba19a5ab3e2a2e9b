"""The state of one step in one key group: a table of keys and one column for each declared state.

The table is kept as Arrow columns and stored as one Arrow IPC block, which any Arrow reader can open. User code
sees it in one of two ways: value by value under the current key, or as whole columns. Either view is
built when it is first used and written back to the table by `flush`, so the two may take turns within a batch.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError, StateError, UnstorableValueError
from penstock.records import Field, RecordType
from penstock.state.values import StateColumns, StateSpec, Undo, take_back

__all__ = ["Cursor", "GroupState", "StateColumn", "key_values"]

_VERSION: Final = b"1"


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
    """One declared state of a key group, as a column aligned with the group's keys (null: no value)."""

    def __init__(self, spec: StateSpec, owner: GroupState, stored: pa.Array) -> None:
        self.spec = spec
        self._owner = owner
        self._field = Field(spec.name, spec.python_type, spec.arrow_type, nullable=True)
        self.stored = stored
        self.values: dict[Any, Any] = {}
        self.dirty: dict[Any, None] = {}
        self._columns: StateColumns | None = None
        self._columns_changed = False

    # -- value by value --

    def load(self, key: Any) -> Any:
        """The stored value of a key, remembered for the next time."""
        slot = self._owner.index.get(key)
        value = None
        if slot is not None and self.stored[slot].is_valid:
            value = self._to_python(self.stored.slice(slot, 1))[0]
        self.values[key] = value
        return value

    def preload(self) -> None:
        """Turn all stored values into Python objects at once: cheaper than one by one when most are used."""
        if not self.values:
            self.values = dict(zip(self._owner.index, self._to_python(self.stored), strict=True))

    def _to_python(self, stored: pa.Array) -> list[Any]:
        record_type = self.spec.record_type
        if record_type is None:
            return self._field.to_python(stored)
        if not stored.null_count:
            return record_type.objects(_unpacked(stored, record_type))
        found = iter(record_type.objects(_unpacked(pc.drop_null(stored), record_type)))
        return [next(found) if ok else None for ok in stored.is_valid().to_pylist()]

    # -- as columns --

    def columns(self) -> StateColumns:
        """The values of all keys of the group as NumPy columns."""
        if self._columns is None:
            self._columns = StateColumns.of_arrow(self.stored, self.spec)
        self._columns.grow(len(self._owner.keys))
        return self._columns

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set the values of the keys in `slots`."""
        self.columns().put(slots, values)
        self._columns_changed |= len(slots) > 0

    def snapshot(self) -> tuple[StateColumns, bool] | None:
        """The columns as they are now, for `restore`."""
        return None if self._columns is None else (self._columns.copy(), self._columns_changed)

    def restore(self, snapshot: tuple[StateColumns, bool] | None) -> None:
        """Back to a snapshot."""
        if snapshot is None:
            self._columns, self._columns_changed = None, False
        else:
            self._columns, self._columns_changed = snapshot[0].copy(), snapshot[1]

    # -- back to the table --

    def check_value(self, value: Any) -> None:
        """Raise UnstorableValueError when a value cannot be stored."""
        try:
            self._to_arrow([value])
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

    def flush_columns(self) -> bool:
        """Write changed columns back; returns whether there were any."""
        changed = self._columns_changed
        if changed:
            self.stored = self._columns_to_arrow()
        self._columns, self._columns_changed = None, False
        return changed

    def flush_values(self, slots: Mapping[Any, int], count: int) -> bool:
        """Write changed values back; returns whether there were any."""
        missing = count - len(self.stored)
        if not self.dirty and not missing:
            return False
        changed_slots = [slots[key] for key in self.dirty]
        try:
            changed = self._to_arrow([self.values[key] for key in self.dirty])
        except SchemaError as e:
            raise UnstorableValueError(f"the state {self.spec.name!r} cannot hold a value: {e}") from e
        places = np.full(count, -1, np.int64)
        places[: len(self.stored)] = np.arange(len(self.stored))
        places[changed_slots] = len(self.stored) + np.arange(len(changed_slots))
        taken = pa.array(places, mask=places < 0)
        self.stored = pa.concat_arrays([self.stored, changed]).take(taken)
        had = bool(self.dirty)
        self.dirty = {}
        return had

    def _to_arrow(self, values: Sequence[Any]) -> pa.Array:
        record_type = self.spec.record_type
        if record_type is None:
            return self._field.to_arrow(values)
        present = [value for value in values if value is not None]
        packed = _packed(record_type.batch(present), self.spec.arrow_type)
        if len(present) == len(values):
            return packed
        places = np.cumsum([value is not None for value in values]) - 1
        return packed.take(pa.array(places, mask=np.array([value is None for value in values])))


def _unpacked(stored: pa.Array, record_type: RecordType) -> pa.RecordBatch:
    """A struct column without nulls as a record batch."""
    return pa.RecordBatch.from_arrays(stored.flatten(), names=list(record_type.field_names))


def _packed(batch: pa.RecordBatch, arrow_type: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays(batch.columns, fields=list(arrow_type))


class GroupState:
    """All states of one step in one key group.

    `stored` is what an earlier `dump` gave, or None for an empty group. Raises StateError when it does not fit
    the declared states.
    """

    def __init__(
        self,
        key_type: pa.DataType,
        specs: Sequence[StateSpec],
        stored: bytes | None,
        cursor: Cursor | None = None,
    ) -> None:
        self._key_type = key_type
        self.cursor = cursor or Cursor(None, [])
        table = None if stored is None else _read(stored)
        if table is None:
            self.keys: pa.Array = pa.array([], key_type)
        else:
            self.keys = table.column("key")
            _check_fits(table.schema, key_type, specs)
        self.columns: dict[str, StateColumn] = {}
        for spec in specs:
            if table is not None and spec.name in table.schema.names:
                column = table.column(spec.name)
            else:
                column = pa.nulls(len(self.keys), spec.arrow_type)
            self.columns[spec.name] = StateColumn(spec, self, column)
        self._index: dict[Any, int] | None = None
        self._changed = False

    @property
    def index(self) -> dict[Any, int]:
        """The slot of each stored key."""
        if self._index is None:
            self._index = dict(zip(key_values(self.keys), range(len(self.keys)), strict=True))
        return self._index

    def preload(self, expected_keys: int) -> None:
        """Prepare for per-record access to about `expected_keys` keys."""
        if expected_keys * 4 >= len(self.keys):
            for column in self.columns.values():
                column.preload()

    def settled_keys(self) -> list[Any]:
        """The keys that hold a value, with all that was changed written back, and their values at hand."""
        self.flush()
        self._drop_empty_keys()
        self.preload(len(self.keys))
        return list(self.index)

    def has(self, key: Any) -> bool:
        """Whether a key holds or held a value, or has just got one."""
        return key in self.index or any(key in column.dirty for column in self.columns.values())

    def keys_now(self) -> list[Any]:
        """The keys that hold or held a value, with those that have just got one."""
        keys = dict.fromkeys(self.index)
        for column in self.columns.values():
            keys |= column.dirty
        return list(keys)

    def slots_of(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """The slot of each key; keys not seen before get new slots at the end."""
        if pa.types.is_struct(keys.type):
            return self._slots_of_several(keys)
        places = pc.index_in(keys, value_set=self.keys)
        if places.null_count:
            new = pc.unique(pc.filter(keys, places.is_null()))
            self.keys = pa.concat_arrays([self.keys, new])
            self._index = None
            places = pc.index_in(keys, value_set=self.keys)
        slots: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
        return slots

    def _slots_of_several(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """`slots_of` for keys of several fields, which Arrow cannot look up."""
        index = self.index
        known = len(index)
        slots = np.array([index.setdefault(key, len(index)) for key in key_values(keys)], np.int64)
        if len(index) > known:
            self.keys = pa.concat_arrays([self.keys, pa.array(list(index)[known:], self._key_type)])
        return slots

    def flush(self) -> None:
        """Write what either view has changed back to the table."""
        touched: dict[Any, None] = {}
        for column in self.columns.values():
            # What was set and taken back without having been looked at is as it was.
            column.dirty = {key: None for key in column.dirty if key in column.values}
            touched |= column.dirty
        if touched:
            index = self.index
            new = [key for key in touched if key not in index]
            if new:
                self.keys = pa.concat_arrays([self.keys, pa.array(new, self._key_type)])
                index.update(zip(new, range(len(index), len(index) + len(new)), strict=True))
        for column in self.columns.values():
            changed = column.flush_columns()
            changed |= column.flush_values(self.index if column.dirty else {}, len(self.keys))
            column.values = {}
            self._changed |= changed

    def dump(self) -> tuple[bytes | None, int]:
        """The table as bytes, or None when nothing has changed, and the number of keys that hold a value."""
        self.flush()
        self._drop_empty_keys()
        if not self._changed:
            return None, len(self.keys)
        arrays = [self.keys, *(column.stored for column in self.columns.values())]
        schema = pa.schema(
            [
                pa.field("key", self._key_type),
                *(pa.field(n, c.spec.arrow_type) for n, c in self.columns.items()),
            ],
            metadata={b"penstock.state": _VERSION},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._changed = False
        return sink.getvalue().to_pybytes(), len(self.keys)

    def _drop_empty_keys(self) -> None:
        """Keys whose last value was cleared (or that never got one) leave the table."""
        if not len(self.keys):
            return
        held = np.zeros(len(self.keys), bool)
        for column in self.columns.values():
            if column.stored.null_count == 0:
                return
            held |= column.stored.is_valid().to_numpy(zero_copy_only=False)
        if held.all():
            return
        mask = pa.array(held)
        self.keys = pc.filter(self.keys, mask)
        for column in self.columns.values():
            column.stored = pc.filter(column.stored, mask)
        self._index = None


def key_values(keys: pa.Array) -> list[Any]:
    """Keys as user code sees them; a key of several fields is a tuple."""
    if pa.types.is_struct(keys.type):
        return list(zip(*(child.to_pylist() for child in keys.flatten()), strict=True))
    return keys.to_pylist()  # type: ignore[no-any-return]


def _read(stored: bytes) -> pa.RecordBatch:
    try:
        reader = pa.ipc.open_stream(stored)
        version = (reader.schema.metadata or {}).get(b"penstock.state")
        batch = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration) as e:
        raise StateError(f"The stored state of a key group cannot be read: {e}") from e
    if version != _VERSION:
        raise StateError(
            f"The stored state has the format version {version!r}; this penstock reads {_VERSION!r}."
        )
    return batch


def _check_fits(found: pa.Schema, key_type: pa.DataType, specs: Iterable[StateSpec]) -> None:
    declared = {"key": key_type, **{spec.name: spec.arrow_type for spec in specs}}
    for field in found:
        if field.name not in declared:
            raise StateError(
                f"The checkpoint holds the state {field.name!r} ({field.type}), which the step no longer declares. "
                "Declare it again, or start with a new checkpoint."
            )
        if not declared[field.name].equals(field.type):
            raise StateError(
                f"The step declares {field.name!r} as {declared[field.name]}; the checkpoint holds {field.type}. "
                "Restore the older job, or start with a new checkpoint."
            )
