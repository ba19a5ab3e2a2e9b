"""State columns: the values of one state for all keys of a key group, as NumPy columns for user code."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.types import CustomColumnCodec, Field, python_values
from penstock.state.exchanges import Exchange
from penstock.state.state_spec import StateSpec

__all__ = ["StateColumns"]


class StateColumns:
    """The values of one state for all keys of a key group, as NumPy columns by key slot.

    `present` is a mask of the keys that have a value. For scalar types `values` is the column; for records
    `columns[name]` is the column of a field. Numbers and booleans are NumPy arrays of their type. All other types and
    optional fields are arrays of Python objects, with the values of an enumeration's members instead of the members.
    Keys without a value have 0 or None. For lists and maps `values` is an array of lists or dicts.

    All columns are read-only; change a state with its `put`.
    """

    def __init__(
        self, spec: StateSpec, present: npt.NDArray[np.bool_], arrays: dict[str, npt.NDArray[Any]]
    ) -> None:
        self._spec = spec
        self._present = present
        self._arrays = arrays

    @classmethod
    def of_arrow(cls, stored: pa.Array, spec: StateSpec) -> StateColumns:
        """Return the columns of a stored state."""
        present = stored.is_valid().to_numpy(zero_copy_only=False).copy()
        if isinstance(spec.python_type, CustomColumnCodec):
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
        """The mask of the keys that have a value."""
        return _read_only(self._present)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The column of a scalar, list or map state."""
        return self[""]

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        try:
            return _read_only(self._arrays[field])
        except KeyError:
            raise KeyError(f"the state {self._spec.name!r} has no field {field!r}") from None

    def __len__(self) -> int:
        return len(self._present)

    def extend(self, more: StateColumns) -> None:
        """Append the values of further keys."""
        self._present = np.concatenate([self._present, more._present])
        for name, array in self._arrays.items():
            self._arrays[name] = np.concatenate([array, more._arrays[name]])

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set values, like `ValueState.put`."""
        for name, column in self._given(values).items():
            self._arrays[name][slots] = column
        self._present[slots] = True

    def exchange(
        self, key_indices: npt.NDArray[np.int64], values: Any
    ) -> tuple[StateColumns, npt.NDArray[np.int64], Any]:
        """Return what each record of `ValueState.exchange` finds, the keys that change, and their new values."""
        given = {
            name: np.asarray(column).astype(self._arrays[name].dtype, copy=False)
            for name, column in self._given(values).items()
        }
        exchange = Exchange(key_indices)
        arrays = {name: exchange.before(self._arrays[name], column) for name, column in given.items()}
        present = exchange.before(self._present, np.ones(len(key_indices), bool))
        last = exchange.last
        if self._spec.ttl is None and all(map(_is_exact, self._types())):
            keys = key_indices[last]
            same = [self._arrays[name][keys] == column[last] for name, column in given.items()]
            last = last[~np.logical_and.reduce([self._present[keys], *same])]
        after = {name: column[last] for name, column in given.items()}
        found = StateColumns(self._spec, present, arrays)
        return found, key_indices[last], after if self._spec.record_type else after[""]

    def _given(self, values: Any) -> Mapping[str, Any]:
        """Return values as columns by field name; the column of a scalar state has the name ""."""
        given: Mapping[str, Any] = values if isinstance(values, Mapping) else {"": values}
        if set(given) != set(self._arrays):
            raise ValueError(
                f"the state {self._spec.name!r} takes the columns {sorted(self._arrays)}, not {sorted(given)}"
            )
        # NumPy would turn a list of lists into a table.
        return {
            name: _objects(column)
            if self._arrays[name].dtype == object and isinstance(column, list | tuple)
            else column
            for name, column in given.items()
        }

    def _types(self) -> list[pa.DataType]:
        """Return the stored types of the columns."""
        kind = self._spec.record_type
        return [self._spec.arrow_type] if kind is None else [field.arrow_type for field in kind.fields]

    def copy(self) -> StateColumns:
        """Return an independent copy."""
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
        """Convert the columns to the stored form. Raises SchemaError if a value cannot be stored."""
        everywhere = bool(self._present.all())
        spec = self._spec
        if spec.record_type is None:
            # An empty list or map is stored as null.
            own = isinstance(spec.python_type, CustomColumnCodec)
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


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether equal values are stored identically. Floats are not: there are two zeros."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


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
    """Return an array of Python objects, even from lists of equal length."""
    return np.fromiter(values, object, len(values))
