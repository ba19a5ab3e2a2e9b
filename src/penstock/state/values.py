"""Value state: one value per key, as user code declares and uses it; and what all kinds of keyed state share."""

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
from penstock.state.state_spec import StateSpec, completed, fitted, json_decoder, value_spec
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

    def exchange(self, key_indices: npt.NDArray[np.int64], values: Any) -> StateColumns:  # noqa: ARG002  # as above
        """In `process_batch`: `get`, then `set`, for one record after the other; gives what each `get` found.

        `key_indices` are the keys of the records, each as often as it comes; `values` is what each sets, as for `put`.
        The columns that come back have a row for each record.

        >>> class Changes(ProcessFunction):
        ...     level = ValueState(int)
        ...     def process_batch(self, records, ctx):
        ...         levels = records.column("level").to_numpy()
        ...         before = self.level.exchange(ctx.key_indices, levels)
        ...         return ctx.select(~before.present | (levels != before.values), "sensor", "level")
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

    def exchange(self, key_indices: npt.NDArray[np.int64], values: Any) -> StateColumns:  # noqa: D102  # as declared
        found, changed, behind = self.columns().exchange(key_indices, values)
        if len(changed):
            self.put(changed, behind)
        return found

    def _fitted(self, value: Any) -> Any:
        return None if value is None else fitted(value, self._column.spec)


class CheckedValueState(CheckedState, BoundValueState):
    """A value state that tries at once whether what it is set to can be stored."""

    __slots__ = ()

    def set(self, value: Any) -> None:  # noqa: D102  # as declared
        fitted = value if type(value) is self._exact else self._fitted(value)
        self._column.check_value(fitted)
        super().set(fitted)
