"""List state: any number of values per key, in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.types import CustomColumnCodec, Field
from penstock.state.cursor import Cursor
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, value_spec
from penstock.state.ttl import Ttl
from penstock.state.undo import LONGER
from penstock.state.values import BoundState, CheckedState, KeyedState

__all__ = [
    "BoundListState",
    "CheckedListState",
    "ListForm",
    "ListState",
    "column_of_parts",
    "elements",
    "offsets_of",
    "offsets_of_lengths",
    "parts_of_column",
    "split_elements",
]

T = TypeVar("T")


class ListState(KeyedState, Generic[T]):
    """A list per key. A key with an empty list uses no storage.

    Declare it in the body of a process function; in the function's methods it refers to the list of the current key:

    >>> class LastSeen(ProcessFunction):
    ...     recent = ListState(str)
    ...     def process_record(self, record, ctx):
    ...         self.recent.add(record.page)
    ...         if len(self.recent) > 10:
    ...             self.recent.set(self.recent.get()[-10:])

    The cost of `add` does not depend on the length of the list. A loop over the state iterates over a copy, so it may
    change the state. Treat the items themselves as read-only.

    Args:
        item_type: the type of the items, as for `ValueState`.
        ttl: how long the whole list is kept after it was last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    @overload
    def __init__(
        self, item_type: type[T], *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: ListState[Any], item_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None: ...
    def __init__(self, item_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        self._item_type = item_type
        self.ttl = ttl
        self.renamed_from = renamed_from

    @property
    def set_type(self) -> Any:
        """The type to which a command sets the state: a list of items."""
        item: Any = self._item_type
        return list[item]

    def spec(self) -> StateSpec:
        """Return how the state is stored: as an Arrow list of its items."""
        item = value_spec(self._checked_name(), self._item_type)
        return StateSpec(self.name, ListForm(item), pa.list_(item.arrow_type), None, self.ttl)

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a list from a JSON array. Raises msgspec.DecodeError when it does not fit."""
        item: Any = value_spec("", self._item_type).python_type
        return fill_defaults(msgspec.json.decode(data, type=list[item] | None))

    def get(self) -> list[T]:
        """Return a copy of the list of the current key; an empty list if the key has none."""
        raise self._outside()

    def add(self, item: T) -> None:  # noqa: ARG002  # bound states override
        """Append an item. Raises TypeError if it is not of the declared type."""
        raise self._outside()

    def add_all(self, items: Iterable[T]) -> None:  # noqa: ARG002  # as above
        """Append several items. Raises TypeError if one is not of the declared type."""
        raise self._outside()

    def set(self, items: Iterable[T] | None) -> None:  # noqa: ARG002  # as above
        """Replace the whole list; None clears it. Raises TypeError if an item is not of the declared type."""
        raise self._outside()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:  # noqa: ARG002  # as above
        """In `process_batch`: set the lists of the keys in `slots` (distinct slots); `values` is a list of lists."""
        raise self._outside()

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def __len__(self) -> int:
        raise self._outside()


class BoundListState(BoundState, ListState[Any]):
    """A list state at run time. The list of a key is changed in place; undo truncates it to its previous length."""

    __slots__ = ("_exact", "_item")

    def __init__(self, column: StateColumn, cursor: Cursor) -> None:
        super().__init__(column, cursor)
        self._item: StateSpec = column.spec.python_type.item
        self._exact = self._item_type = self._item.python_type

    def get(self) -> list[Any]:  # noqa: D102  # as declared
        return list(self._held() or ())

    def add(self, item: Any) -> None:  # noqa: D102  # as declared
        if type(item) is not self._exact:
            item = fit_value(item, self._item)
        key = self._cursor.key
        try:
            held = self._values[key]
        except KeyError:
            held = self._column.load(key)
        if held is None:
            self._replace([item])
            return
        self._note_undo((held, len(held), LONGER))
        held.append(item)
        self._dirty[key] = None

    def add_all(self, items: Iterable[Any]) -> None:  # noqa: D102  # as declared
        self._extend(self._fit(items))

    def set(self, items: Iterable[Any] | None) -> None:  # noqa: D102  # as declared
        self._replace(None if items is None else self._fit(items))

    def __len__(self) -> int:
        return len(self._held() or ())

    def _extend(self, items: list[Any]) -> None:
        held = self._held()
        if held is None:
            self._replace(items)
            return
        self._note_undo((held, len(held), LONGER))
        held += items
        self._dirty[self._cursor.key] = None

    def _fit(self, items: Iterable[Any]) -> list[Any]:
        if isinstance(items, str | bytes):
            raise TypeError(f"the state {self.name!r} takes a list of items, not {items!r}")
        exact, item_spec = self._exact, self._item
        return [item if type(item) is exact else fit_value(item, item_spec) for item in items]


class CheckedListState(CheckedState, BoundListState):
    """A list state that checks at once whether new items can be stored."""

    __slots__ = ()

    def add(self, item: Any) -> None:  # noqa: D102  # as declared
        self.add_all([item])

    def _fit(self, items: Iterable[Any]) -> list[Any]:
        found = super()._fit(items)
        # Only the new items: the others were checked when they were added.
        self._column.check_value(found)
        return found


ListState.run_time = (BoundListState, CheckedListState)


@dataclass(frozen=True)
class ListForm(CustomColumnCodec):
    """The codec of lists as an Arrow list; an empty list is stored as null."""

    item: StateSpec

    def parts(self) -> dict[str, StateSpec]:  # noqa: D102  # as declared
        return {"item": self.item}

    def to_python(self, column: pa.Array) -> list[Any]:  # noqa: D102  # as declared
        return list(split_elements(parts_of_column(self.item, elements(column)), column))

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:  # noqa: D102  # as declared
        items = list(itertools.chain.from_iterable(value for value in values if value))
        return pa.ListArray.from_arrays(offsets_of(values), column_of_parts(self.item, items))


def elements(column: pa.Array) -> pa.Array:
    """Return the elements of all lists or maps of a column, concatenated."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.values.slice(first, last - first)


def split_elements(parts: list[Any], column: pa.Array) -> Iterator[list[Any] | None]:
    """Yield the elements of each list or map of a column; None if it is null or empty."""
    bounds = column.offsets.to_numpy()
    bounds = (bounds - bounds[0]).tolist()
    present = column.is_valid().to_pylist()
    for low, high, some in zip(bounds[:-1], bounds[1:], present, strict=True):
        yield parts[low:high] if some and low < high else None


def offsets_of(values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """Return the offsets of each list or map; null for an empty one."""
    return offsets_of_lengths(
        np.fromiter((len(value) if value else 0 for value in values), np.int64, len(values))
    )


def offsets_of_lengths(lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Return the offsets of lists of these lengths; null for an empty one."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.array(offsets, pa.int32(), mask=np.append(lengths == 0, False))


def parts_of_column(part: StateSpec, column: pa.Array) -> list[Any]:
    """Convert a column without nulls to values as user code sees them."""
    if part.record_type is None:
        return _field_of(part).to_python(column)
    names = list(part.record_type.field_names)
    return part.record_type.objects(pa.RecordBatch.from_arrays(column.flatten(), names=names))


def column_of_parts(part: StateSpec, values: list[Any]) -> pa.Array:
    """Convert values to a column. Raises SchemaError when one cannot be stored."""
    if part.record_type is None:
        return _field_of(part).to_arrow(values)
    columns = part.record_type.batch(values).columns
    return pa.StructArray.from_arrays(columns, fields=list(part.arrow_type))


def _field_of(part: StateSpec) -> Field:
    return Field(part.name, part.python_type, part.arrow_type, nullable=False)
