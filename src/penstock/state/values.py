"""Value state: one value per key, as user code declares and uses it; and the base of all kinds of keyed state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import SchemaError, StateError
from penstock.state.ttl import Ttl

if TYPE_CHECKING:
    from penstock.state.cursor import Cursor
    from penstock.state.state_column import StateColumn

from penstock.state.state_columns import StateColumns
from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, json_decoder, value_spec
from penstock.state.undo import ABSENT

__all__ = [
    "BoundState",
    "BoundValueState",
    "CheckedState",
    "CheckedValueState",
    "KeyedState",
    "T",
    "ValueState",
]


T = TypeVar("T")


class KeyedState:
    """The base of every kind of keyed state: declared in the body of a process function, and stored as one column."""

    name = ""
    ttl: Ttl | None = None
    renamed_from: str | None = None
    # Whether it has a value for each key; operator states have one for each part of a step without a key.
    by_key: ClassVar[bool] = True

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a command's value for the state from JSON. Raises msgspec.DecodeError if it does not fit."""
        raise NotImplementedError

    @property
    def set_type(self) -> Any:
        """The type to which a command sets the state."""
        raise NotImplementedError

    def spec(self) -> StateSpec:
        """Return how the state is stored. Raises SchemaError if it cannot be stored."""
        raise NotImplementedError

    run_time: ClassVar[tuple[type[BoundState], type[BoundState]]]
    """The classes that implement the state at run time: the usual one, and one that checks values at once."""

    def clear(self) -> None:
        """Remove the value of the current key."""
        raise self._outside()

    def columns(self) -> StateColumns:
        """In `process_batch`: return the values of all keys of the key group, as columns by key slot."""
        raise self._outside()

    def _checked_name(self) -> str:
        if self.name == "key":
            raise SchemaError("A state cannot be named 'key'; the key's own column has that name.")
        return self.name

    def _outside(self) -> StateError:
        return StateError(f"The state {self.name!r} has a value only while its function processes records.")


class ValueState(KeyedState, Generic[T]):
    """One value per key, or none.

    Declare it in the body of a process function; in the function's methods it refers to the value of the current key:

    >>> class Counter(ProcessFunction):
    ...     seen = ValueState(int)
    ...     def process_record(self, record, ctx):
    ...         self.seen.set((self.seen.get() or 0) + 1)

    Treat a value from `get` as read-only: a change takes effect only by `set`. If the function raises on a record, the
    values are as they were before the record.

    Args:
        value_type: a Python type (bool, int, float, str, bytes, datetime, date, Decimal, an Enum, a list or dict of
            these), or a schema as for streams (a dataclass, a protobuf message class).
        ttl: how long a value is kept after it was last touched, see `Ttl`; without one, forever.
        renamed_from: the earlier name of the state, if the attribute was renamed. The stored values stay.

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
        """The type to which a command sets the state: the type of its values."""
        return self._value_type

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a value from JSON. Raises msgspec.DecodeError when it is not of the declared type."""
        return fill_defaults(json_decoder(self._value_type).decode(data))

    def spec(self) -> StateSpec:
        """Return how the state is stored. Raises SchemaError if its type cannot be stored."""
        return value_spec(self._checked_name(), self._value_type, self.ttl)

    def get(self) -> T | None:
        """Return the value of the current key, or None."""
        raise self._outside()

    def set(self, value: T) -> None:  # noqa: ARG002  # bound states override
        """Set the value of the current key. Raises TypeError if it is not of the declared type."""
        raise self._outside()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:  # noqa: ARG002  # as above
        """In `process_batch`: set the values of the keys in `slots` (distinct slots).

        `values` is a column for scalar types, or a mapping of field name to column for records.
        """
        raise self._outside()

    def exchange(self, key_indices: npt.NDArray[np.int64], values: Any) -> StateColumns:  # noqa: ARG002  # as above
        """In `process_batch`: `get`, then `set`, for each record in turn. Returns the values that the `get`s found.

        `key_indices` has the key index of each record; keys may repeat. `values` has the value that each record sets,
        as for `put`. The returned columns have one row per record.

        >>> class Changes(ProcessFunction):
        ...     level = ValueState(int)
        ...     def process_batch(self, records, ctx):
        ...         levels = records.column("level").to_numpy()
        ...         before = self.level.exchange(ctx.key_indices, levels)
        ...         return ctx.select(~before.present | (levels != before.values), "sensor", "level")
        """
        raise self._outside()


class BoundState(KeyedState):
    """A keyed state at run time, bound to one key group. `describe` passes it the declaration."""

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
        """Take over the declaration."""

    def refresh(self) -> None:
        """Use the column's new values, after they were flushed or preloaded."""
        self._values = self._column.values
        self._dirty = self._column.dirty

    def move(self, column: StateColumn) -> None:
        """Switch to the keys of another key group."""
        self._column = column
        self.refresh()

    def clear(self) -> None:  # noqa: D102  # as declared
        self._replace(None)

    def columns(self) -> StateColumns:  # noqa: D102  # as declared
        return self._column.columns()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        """Set values, like `ValueState.put`."""
        self._put_columns(slots, values)

    def _held(self) -> Any:
        """Return the value of the current key in the form in which the column holds it, or None."""
        key = self._cursor.key
        try:
            return self._values[key]
        except KeyError:
            return self._column.load(key)

    def _replace(self, held: Any) -> None:
        """Replace the value of the current key."""
        values, key, dirty = self._values, self._cursor.key, self._dirty
        before = values.get(key, ABSENT)
        self._note_undo((values, key, before))
        values[key] = held
        dirty[key] = dirty.get(key, before)

    def _put_columns(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        self._column.put(slots, values)


class CheckedState(BoundState):
    """A keyed state that checks at once whether columns can be stored. Subclasses check their other methods."""

    __slots__ = ()

    def _put_columns(self, slots: npt.NDArray[np.int64], values: Any) -> None:
        # User code may catch the error and continue, so the columns must be restored.
        before = self._column.snapshot()
        try:
            super()._put_columns(slots, values)
            self._column.check_columns()
        except Exception:
            self._column.restore(before)
            raise


class BoundValueState(BoundState, ValueState[Any]):
    """A value state at run time."""

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
            value = self._fit(value)
        values, key, dirty = self._values, self._cursor.key, self._dirty
        before = values.get(key, ABSENT)
        self._note_undo((values, key, before))
        values[key] = value
        dirty[key] = dirty.get(key, before)

    def exchange(self, key_indices: npt.NDArray[np.int64], values: Any) -> StateColumns:  # noqa: D102  # as declared
        found, changed, after = self.columns().exchange(key_indices, values)
        if len(changed):
            self.put(changed, after)
        return found

    def _fit(self, value: Any) -> Any:
        return None if value is None else fit_value(value, self._column.spec)


class CheckedValueState(CheckedState, BoundValueState):
    """A value state that checks at once whether its new value can be stored."""

    __slots__ = ()

    def set(self, value: Any) -> None:  # noqa: D102  # as declared
        fit = value if type(value) is self._exact else self._fit(value)
        self._column.check_value(fit)
        super().set(fit)


ValueState.run_time = (BoundValueState, CheckedValueState)
