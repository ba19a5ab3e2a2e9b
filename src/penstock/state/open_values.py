"""Open values: the states of a step as Python objects, from round to round, for code that runs record by record.

The values of a key are found again in the next round without its row, and become a row only once, when the changes are
taken. So a round costs little more than its computation. Values stay open when an interval ends, since they equal
the rows then, unless they are records that code can change in place.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError, UnstorableValueError
from penstock.state.frozen_values import FrozenValues
from penstock.state.group_table import KEY_COLUMN, Rows
from penstock.state.key_index import MANY, key_values
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec

__all__ = ["OpenValues", "can_stay_open"]

# The approximate size of a key and of a value, with their entries in dictionaries.
_KEY_BYTES: Final = 250
_VALUE_BYTES: Final = 200


class OpenValues:
    """The values of the keys that rounds have touched, like `GroupState` for one round. `touch` begins a round.

    The columns have values only; user code that works on whole columns has the rows instead.
    """

    def __init__(self, specs: Sequence[StateSpec], rows: Rows) -> None:
        self._rows = rows
        self._key_type: Final = rows.schema.field(KEY_COLUMN).type
        self.columns: Final[dict[str, StateColumn]] = {
            spec.name: _OpenColumn(spec, self, pa.nulls(0, spec.arrow_type)) for spec in specs
        }
        # The number of each touched key, and the object that code sees for it.
        self._keys: Final[dict[Any, int]] = {}
        self._objects: Final[dict[Any, Any]] = {}
        self._next = 0
        self._exact: Final = {spec.name: _ExactValues(spec) for spec in specs}
        # The keys that each state has changed in earlier rounds.
        self._changed: dict[str, dict[Any, None]] = {spec.name: {} for spec in specs}
        self._frozen: FrozenValues | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the values, in bytes."""
        return len(self._keys) * (_KEY_BYTES + _VALUE_BYTES * len(self.columns))

    def go_on(self, specs: Sequence[StateSpec], rows: Rows) -> bool:
        """Continue with a table that has the same rows; return whether the values are certain to equal the rows.

        They may not if a type was loaded again, or if code has changed a record in place without setting it: a run that
        continues from the rows would not see that change.
        """
        self._rows = rows
        known = [(column.spec.name, column.spec.python_type) for column in self.columns.values()]
        return (
            len(known) == len(specs)
            and all(
                name == spec.name and python_type is spec.python_type
                for (name, python_type), spec in zip(known, specs, strict=True)
            )
            and self.outlives_rows
        )

    @property
    def outlives_rows(self) -> bool:
        """Whether the values equal the rows made from them, because no code can change one in place."""
        return not any(_is_mutable(column.spec) for column in self.columns.values())

    def untouched(self, keys: Sequence[Any]) -> list[Any]:
        """Return those of the keys whose values are not open."""
        known = self._keys
        return [key for key in keys if key not in known]

    @property
    def index(self) -> dict[Any, int]:
        """The number of each touched key."""
        return self._keys

    def slot_of(self, key: Any) -> int:
        """Return the number of a key; this touches the key."""
        if key not in self._keys:
            self.touch([key])
        return self._keys[key]

    def objects_of(self, keys: pa.Array) -> list[Any]:
        """Return the keys of a round's records; if there are many, equal keys are the same object as in `values`."""
        if len(keys) < MANY or pa.types.is_struct(keys.type):
            return key_values(keys)
        encoded = keys.dictionary_encode()
        objects = list(map(self._objects.__getitem__, key_values(encoded.dictionary)))
        found: list[Any] = np.array(objects, object)[encoded.indices.to_numpy()].tolist()
        return found

    def touch(self, new: Sequence[Any]) -> None:
        """Open the values of keys that are not touched yet."""
        if not new:
            return
        _, rows = self._rows.lookup(pa.array(new, self._key_type))
        self._keys.update(zip(new, range(self._next, self._next + len(new)), strict=True))
        self._objects.update(zip(new, new, strict=True))
        self._next += len(new)
        for column in self.columns.values():
            stored = rows.column(column.spec.name)
            if stored.null_count == len(stored):
                column.values.update(dict.fromkeys(new))
            else:
                column.values.update(zip(new, column.spec.to_python(stored), strict=True))

    def materialise(self) -> None:
        """Do nothing: the values are Python objects."""

    def flush(self) -> None:
        """Do nothing: rows are made when the values are closed."""

    def changes(self) -> None:
        """End a round. If it has set a value that cannot be stored, undo the round and raise UnstorableValueError."""
        try:
            for column in self.columns.values():
                _check(column)
        except UnstorableValueError:
            for column in self.columns.values():
                column.values.update(column.dirty)
                column.dirty.clear()
            raise
        for name, column in self.columns.items():
            if self._frozen is not None:
                self._frozen.save(name, column.dirty)
            self._changed[name].update(dict.fromkeys(column.dirty))
            column.dirty.clear()

    @property
    def has_changes(self) -> bool:
        """Whether any value has changed."""
        return any(self._changed.values())

    def take_changes(self) -> pa.RecordBatch | None:
        """Return the rows of the keys that have changed since the last call, or None if there are none.

        The caller puts them into the table. The values stay open if reading them back would give the same.
        """
        frozen = self.freeze()
        self.end_frozen()
        if not frozen.keys:
            return None
        for _ in frozen.make_columns():
            pass
        rows = frozen.rows(frozen.columns(), self._rows.lookup)
        return rows if rows.num_rows else None

    def freeze(self) -> FrozenValues:
        """Return the changes since the last call, until `end_frozen`. Values stay open if they read back the same."""
        changed, self._changed = self._changed, {name: {} for name in self.columns}
        self._frozen = frozen = FrozenValues(self._rows.schema, self.columns, changed)
        altered: dict[Any, None] = {}
        for name, keys in changed.items():
            altered |= dict.fromkeys(self._exact[name].altered(keys, self.columns[name].values))
        for name, column in self.columns.items():
            frozen.save(name, {key: column.values[key] for key in altered})
        self._forget(altered)
        return frozen

    def end_frozen(self) -> None:
        """Note that the frozen values have become rows."""
        self._frozen = None

    def _forget(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self._keys.pop(key, None)
            self._objects.pop(key, None)
            for column in self.columns.values():
                column.values.pop(key, None)

    def forget_unchanged(self) -> None:
        """Forget the values of keys that have not changed since changes were taken last."""
        changed = set().union(*self._changed.values())
        self._forget([key for key in self._keys if key not in changed])


class _ExactValues:
    """Which values of a state are the same when they are read back.

    A field of a record may have a value of another type than it declares, such as 20 for 20.0.
    """

    def __init__(self, spec: StateSpec) -> None:
        fields = () if spec.record_type is None else spec.record_type.fields
        # A record within the record may have such a field too.
        self._types: Final = [
            None if pa.types.is_struct(field.arrow_type) else field.python_type for field in fields
        ]
        self._fields_of: Final = operator.attrgetter(*(field.name for field in fields)) if fields else None
        self._are_exact: Final[dict[tuple[type, ...], bool]] = {}

    def altered(self, keys: Iterable[Any], values: Mapping[Any, Any]) -> list[Any]:
        """Return those of the keys whose values may be others when they are read back."""
        if self._fields_of is None:
            return []
        return [key for key in keys if not self._is_exact(values[key])]

    def _is_exact(self, value: Any) -> bool:
        if value is None:
            return True
        assert self._fields_of is not None
        found = self._fields_of(value)
        kinds = tuple(map(type, found)) if len(self._types) > 1 else (type(found),)
        known = self._are_exact.get(kinds)
        if known is None:
            known = self._are_exact[kinds] = all(
                kind in (declared, types.NoneType) for kind, declared in zip(kinds, self._types, strict=True)
            )
        return known


class _OpenColumn(StateColumn):
    """A state whose values are open."""

    def load(self, key: Any) -> Any:
        """Return the value of a key, which this touches."""
        self._owner.slot_of(key)
        return self.values[key]


def can_stay_open(specs: Iterable[StateSpec]) -> bool:
    """Return whether the stored values of each state equal the values that were set, so they may stay open."""
    return all(spec.ttl is None and _is_kept_exactly(spec.arrow_type) for spec in specs)


def _is_kept_exactly(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_kept_exactly(kind.field(number).type) for number in range(kind.num_fields))
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or kind.equals(pa.float64())
    )


def _is_mutable(spec: StateSpec) -> bool:
    """Return whether a value may be changed in place: it is a record that is not frozen, or that may hold one."""
    if not pa.types.is_struct(spec.arrow_type):
        return False
    if any(pa.types.is_struct(field.type) for field in spec.arrow_type):
        return True
    kind = spec.python_type
    parameters = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
    return parameters is None or not parameters.frozen


def _check(column: StateColumn) -> None:
    """Raise UnstorableValueError if a value that has changed cannot be stored."""
    if not column.dirty or column.spec.python_type in (float, bool):
        return
    try:
        column.spec.to_arrow([column.values.get(key) for key in column.dirty])
    except SchemaError as e:
        raise UnstorableValueError(f"the state {column.spec.name!r} cannot hold a value: {e}") from e
