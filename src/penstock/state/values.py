"""Value state: one value per key, as user code declares and uses it; and what all kinds of keyed state share."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError, StateError
from penstock.json_lines import python_values
from penstock.records import Field, OwnForm, RecordType, arrow_type_of, record_type
from penstock.state.ttl import Ttl

if TYPE_CHECKING:
    from penstock.state.state_column import Cursor, StateColumn

__all__ = [
    "ABSENT",
    "LONGER",
    "BoundState",
    "BoundValueState",
    "CheckedState",
    "CheckedValueState",
    "KeyedState",
    "StateColumns",
    "StateSpec",
    "Undo",
    "ValueState",
    "completed",
    "fitted",
    "json_decoder",
    "take_back",
    "undo_of",
    "value_spec",
]

T = TypeVar("T")
ABSENT: Final = object()
LONGER: Final = object()


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """A declared state: its name and an earlier one, the type of its values, how they are stored and for how long."""

    name: str
    python_type: Any
    arrow_type: pa.DataType
    record_type: RecordType | None
    ttl: Ttl | None = None
    renamed_from: str | None = None

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Values as they are stored; None is no value. SchemaError when one cannot be stored."""
        kind = self.record_type
        if kind is None:
            return self._field.to_arrow(values)
        present = [value for value in values if value is not None]
        packed = pa.StructArray.from_arrays(kind.batch(present).columns, fields=list(self.arrow_type))
        if len(present) == len(values):
            return packed
        places = np.cumsum([value is not None for value in values]) - 1
        return packed.take(pa.array(places, mask=np.array([value is None for value in values])))

    def to_python(self, stored: pa.Array) -> list[Any]:
        """Stored values as user code sees them."""
        kind = self.record_type
        if kind is None:
            return self._field.to_python(stored)
        if not stored.null_count:
            return kind.objects(_unpacked(stored, kind))
        found = iter(kind.objects(_unpacked(pc.drop_null(stored), kind)))
        return [next(found) if ok else None for ok in stored.is_valid().to_pylist()]

    @functools.cached_property
    def _field(self) -> Field:
        return Field(self.name, self.python_type, self.arrow_type, nullable=True)


def _unpacked(stored: pa.Array, record_type: RecordType) -> pa.RecordBatch:
    """A struct column without nulls as a record batch."""
    return pa.RecordBatch.from_arrays(stored.flatten(), names=list(record_type.field_names))


# What a value was before the current record changed it: the values it belongs to, its key, the value, ABSENT where
# there was none. Of a list that got longer: the list, its length before, LONGER. A plain tuple, since one is made for
# each change.
Undo = tuple[Any, Any, Any]


def take_back(undo: Undo) -> None:
    """Put a value back as it was."""
    values, key, before = undo
    if before is ABSENT:
        values.pop(key, None)
    elif before is LONGER:
        del values[key:]
    else:
        values[key] = before


def undo_of(values: dict[Any, Any], key: Any) -> Undo:
    """What takes back a change of a key that is about to be made."""
    return (values, key, values.get(key, ABSENT))


class KeyedState:
    """What every kind of keyed state is: declared in the body of a process function, and stored as one column."""

    name = ""
    ttl: Ttl | None = None
    renamed_from: str | None = None
    # Whether it holds something for each key; operator states hold it for each part of a step without a key.
    by_key: ClassVar[bool] = True

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """What a command sets the state to, from JSON. msgspec.DecodeError when it does not fit."""
        raise NotImplementedError

    @property
    def set_type(self) -> Any:
        """The type of what a command sets the state to."""
        raise NotImplementedError

    def spec(self) -> StateSpec:
        """How the state is stored. SchemaError when it cannot be."""
        raise NotImplementedError

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:
        """The class of the state at work that corresponds to one of a plain value state."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove what the current key holds."""
        raise self._outside()

    def columns(self) -> StateColumns:
        """In `process_batch`: what all keys of the key group hold, as columns by key slot."""
        raise self._outside()

    def _checked_name(self) -> str:
        if self.name == "key":
            raise SchemaError("A state cannot be named 'key'; the key's own column has that name.")
        return self.name

    def _outside(self) -> StateError:
        return StateError(f"The state {self.name!r} has a value only while its function processes records.")


class ValueState(KeyedState, Generic[T]):
    """One value per key, or none.

    Declare it in the body of a process function; inside the function's methods it then speaks of the current
    key. `value_type` is a Python type (bool, int, float, str, bytes, datetime, date, Decimal, an Enum, a list or
    dict of these), or a schema as for streams (a dataclass, a protobuf message class).

    >>> class Counter(ProcessFunction):
    ...     seen = ValueState(int)
    ...     def process_record(self, record, ctx):
    ...         self.seen.set((self.seen.get() or 0) + 1)

    Treat a value from `get` as read-only: a change counts only when it is `set`. With a `ttl` it is kept for that long
    after it was last set.
    """

    @overload
    def __init__(
        self, value_type: type[T], *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[Any], value_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None: ...
    def __init__(self, value_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        self._value_type = value_type
        self.ttl = ttl
        self.renamed_from = renamed_from

    @property
    def value_type(self) -> Any:
        """The type of the values, as declared."""
        return self._value_type

    @property
    def set_type(self) -> Any:
        """The type of what a command sets the state to: that of its values."""
        return self._value_type

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """A value from JSON. msgspec.DecodeError when it is not of the declared type."""
        return completed(json_decoder(self._value_type).decode(data))

    def spec(self) -> StateSpec:
        """How the state is stored. SchemaError when its type cannot be."""
        return value_spec(self._checked_name(), self._value_type, self.ttl)

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:
        """The class of the state at work."""
        return kind

    def get(self) -> T | None:
        """The value of the current key, or None."""
        raise self._outside()

    def set(self, value: T) -> None:  # noqa: ARG002  # bound states override
        """Set the value of the current key. TypeError when it is not of the declared type."""
        raise self._outside()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:  # noqa: ARG002  # as above
        """In `process_batch`: set the values of the keys in `slots` (each slot once).

        `values` is a column for scalar types, or a mapping of field name to column for records.
        """
        raise self._outside()


class BoundState(KeyedState):
    """A keyed state at work, bound to one key group. `describe` tells it what was declared."""

    __slots__ = ("_column", "_cursor", "_dirty", "_note_undo", "_values")

    def __init__(self, column: StateColumn, cursor: Cursor) -> None:
        self.name = column.spec.name
        self.ttl = column.spec.ttl
        self._column = column
        self._cursor = cursor
        self._note_undo = cursor.undo.append
        self._values = column.values
        self._dirty = column.dirty

    def describe(self, declared: Any) -> None:
        """Take over what was declared."""

    def refresh(self) -> None:
        """Look at the column's values anew, after they were flushed or preloaded."""
        self._values = self._column.values
        self._dirty = self._column.dirty

    def move(self, column: StateColumn) -> None:
        """Speak of the keys of another key group from now on."""
        self._column = column
        self.refresh()

    def clear(self) -> None:  # noqa: D102  # as declared
        self._replace(None)

    def columns(self) -> StateColumns:  # noqa: D102  # as declared
        return self._column.columns()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """As `ValueState.put`."""
        self._put_columns(slots, values)

    def _replace(self, held: Any) -> None:
        """What the current key holds from now on."""
        values, key = self._values, self._cursor.key
        self._note_undo((values, key, values.get(key, ABSENT)))
        values[key] = held
        self._dirty[key] = None

    def _put_columns(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        self._column.put(slots, values)


class CheckedState(BoundState):
    """A keyed state that tries at once whether columns can be stored. Its other methods are tried by its kind."""

    __slots__ = ()

    def _put_columns(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        # User code may catch the error and go on, so the columns must be what they were.
        before = self._column.snapshot()
        try:
            super()._put_columns(slots, values)
            self._column.check_columns()
        except Exception:
            self._column.restore(before)
            raise


class BoundValueState(BoundState, ValueState[Any]):
    """A value state at work."""

    __slots__ = ("_exact",)

    def __init__(self, column: StateColumn, cursor: Cursor) -> None:
        super().__init__(column, cursor)
        self._exact = self._value_type = column.spec.python_type

    def get(self) -> Any:  # noqa: D102  # as declared
        try:
            return self._values[self._cursor.key]
        except KeyError:
            return self._column.load(self._cursor.key)

    def set(self, value: Any) -> None:  # noqa: D102  # as declared
        if type(value) is not self._exact:
            value = self._fitted(value)
        values, key = self._values, self._cursor.key
        self._note_undo((values, key, values.get(key, ABSENT)))
        values[key] = value
        self._dirty[key] = None

    def _fitted(self, value: Any) -> Any:
        return None if value is None else fitted(value, self._column.spec)


class CheckedValueState(CheckedState, BoundValueState):
    """A value state that tries at once whether what it is set to can be stored."""

    __slots__ = ()

    def set(self, value: Any) -> None:  # noqa: D102  # as declared
        fitted = value if type(value) is self._exact else self._fitted(value)
        self._column.check_value(fitted)
        super().set(fitted)


def fitted(value: Any, spec: StateSpec) -> Any:
    """A value as one of the declared type. TypeError when it is none."""
    if isinstance(value, enum.Enum) and type(value) is spec.python_type:
        # msgspec takes members only of enumerations of text.
        return value
    try:
        return msgspec.convert(value, spec.python_type, from_attributes=spec.record_type is not None)
    except msgspec.ValidationError as e:
        raise TypeError(f"the state {spec.name!r} was set to {value!r}: {e}") from None


class StateColumns:
    """The values of one state for all keys of a key group, as NumPy columns by key slot.

    `present` tells which keys have a value. For scalar types `values` is the column; for records `columns[name]`
    is the column of a field. Numbers and booleans are NumPy arrays of their type, anything else and optional fields
    arrays of Python objects (an enumeration's are the values of its members); where there is no value they hold 0 or
    None. All are read-only; change them with `put`. For lists and maps `values` is an array of what `get` of a
    `ListState` gives, or of dicts.
    """

    def __init__(
        self, spec: StateSpec, present: npt.NDArray[np.bool_], arrays: dict[str, npt.NDArray[Any]]
    ) -> None:
        self._spec = spec
        self._present = present
        self._arrays = arrays

    @classmethod
    def of_arrow(cls, stored: pa.Array, spec: StateSpec) -> StateColumns:
        """The columns of a stored state."""
        present = stored.is_valid().to_numpy(zero_copy_only=False).copy()
        if isinstance(spec.python_type, OwnForm):
            return cls(spec, present, {"": _objects(spec.python_type.to_python(stored))})
        if spec.record_type is None:
            return cls(spec, present, {"": _to_numpy(stored)})
        arrays = {
            f.name: _to_objects(stored.field(f.name)) if f.nullable else _to_numpy(stored.field(f.name))
            for f in spec.record_type.fields
        }
        return cls(spec, present, arrays)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which keys have a value."""
        return _read_only(self._present)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The column of a scalar state."""
        return self[""]

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        try:
            return _read_only(self._arrays[field])
        except KeyError:
            raise KeyError(f"the state {self._spec.name!r} has no field {field!r}") from None

    def __len__(self) -> int:
        return len(self._present)

    def extend(self, more: StateColumns) -> None:
        """Put the values of further keys behind those that are there."""
        self._present = np.concatenate([self._present, more._present])
        for name, array in self._arrays.items():
            self._arrays[name] = np.concatenate([array, more._arrays[name]])

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set values; see `ValueState.put`."""
        given: Mapping[str, Any] = values if isinstance(values, Mapping) else {"": values}
        if set(given) != set(self._arrays):
            raise ValueError(
                f"the state {self._spec.name!r} takes the columns {sorted(self._arrays)}, not {sorted(given)}"
            )
        for name, column in given.items():
            array = self._arrays[name]
            # NumPy would take a list of lists for a table.
            of_objects = array.dtype == object and isinstance(column, list | tuple)
            array[slots] = _objects(column) if of_objects else column
        self._present[slots] = True

    def copy(self) -> StateColumns:
        """An independent copy."""
        # User code may change a list before it puts it back.
        arrays = {
            name: _objects([*map(copy.copy, array)]) if self._is_nested(name) else array.copy()
            for name, array in self._arrays.items()
        }
        return StateColumns(self._spec, self._present.copy(), arrays)

    def _is_nested(self, name: str) -> bool:
        kind = (
            self._spec.record_type.field(name).arrow_type if self._spec.record_type else self._spec.arrow_type
        )
        return bool(pa.types.is_nested(kind))

    def to_arrow(self) -> pa.Array:
        """Back to the stored form. SchemaError when a value cannot be stored."""
        everywhere = bool(self._present.all())
        spec = self._spec
        if spec.record_type is None:
            # An empty list or map is stored as none.
            own = isinstance(spec.python_type, OwnForm)
            fields: Sequence[Field] = [Field(spec.name, spec.python_type, spec.arrow_type, nullable=own)]
        else:
            fields = spec.record_type.fields
        columns = [
            field.to_arrow(array if everywhere else array[self._present])
            for field, array in zip(fields, self._arrays.values(), strict=True)
        ]
        stored = columns[0]
        if spec.record_type is not None:
            stored = pa.StructArray.from_arrays(columns, fields=list(spec.arrow_type))
        if everywhere:
            return stored
        return stored.take(pa.array(np.cumsum(self._present) - 1, mask=~self._present))


@functools.lru_cache(maxsize=1024)
def _dataclass_fields(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass; none of other types. To ask an enumeration takes long."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def completed(value: Any) -> Any:
    """A value from JSON with the fields of dataclasses that it left at their defaults.

    msgspec leaves these to the class, and then leaves them out when it writes the value again.
    """
    kind: Any = type(value)
    names = _dataclass_fields(kind)
    if names:
        for name in names:
            found = completed(getattr(value, name))
            if name not in getattr(value, "__dict__", {name: found}):
                object.__setattr__(value, name, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            completed(item)
    elif isinstance(value, dict):
        for item in value.values():
            completed(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            completed(getattr(value, name))
    return value


def value_spec(name: str, value_type: Any, ttl: Ttl | None = None) -> StateSpec:
    """How values of a type are stored under a name. SchemaError when they cannot be."""
    try:
        arrow = arrow_type_of(value_type)
    except SchemaError as e:
        try:
            kind = record_type(value_type)
        except SchemaError:
            shown = getattr(value_type, "__name__", repr(value_type))
            raise SchemaError(
                f"{shown} is no type of values that can be kept ({e}). Give int, float, str, bool, bytes, a date or "
                "time, list[...] of these, or a dataclass."
            ) from None
        return StateSpec(name, kind.python_class, _struct_of(kind), kind, ttl)
    if pa.types.is_struct(arrow):
        kind = record_type(value_type)
        return StateSpec(name, value_type, _struct_of(kind), kind, ttl)
    return StateSpec(name, value_type, arrow, None, ttl)


@functools.lru_cache(maxsize=1024)
def json_decoder(value_type: Any) -> msgspec.json.Decoder[Any]:
    """What reads values of a type, or null, from JSON."""
    return msgspec.json.Decoder(value_spec("", value_type).python_type | None)


def _struct_of(kind: RecordType) -> pa.DataType:
    """The struct in which a record is stored; its fields are nullable, as a key may have no record."""
    return pa.struct([pa.field(f.name, f.type, nullable=True) for f in kind.schema])


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _to_numpy(column: pa.Array) -> npt.NDArray[Any]:
    if (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_boolean(column.type)
    ):
        if column.null_count:
            column = column.fill_null(
                pa.scalar(False if pa.types.is_boolean(column.type) else 0, column.type)
            )
        return np.array(column.to_numpy(zero_copy_only=False))
    return _to_objects(column)


def _to_objects(column: pa.Array) -> npt.NDArray[Any]:
    return _objects(python_values(column))


def _objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """An array of Python objects, also of lists of one length."""
    return np.fromiter(values, object, len(values))
