"""Union list state: a list for each part of a step without a key. After a restore it has the items of all parts.

A part stores only its own items, so repeated unions never duplicate an item. `unions` builds the union when the state
of a step is restored, from the rows of all its parts; each slot keeps it once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StateError
from penstock.records.types import CustomColumnCodec
from penstock.state.cursor import Cursor
from penstock.state.group_table import KEY_COLUMN
from penstock.state.lists import (
    BoundListState,
    CheckedListState,
    column_of_parts,
    elements,
    offsets_of,
    parts_of_column,
    split_elements,
)
from penstock.state.operator_lists import OneList, PartListState
from penstock.state.parts import PART_KEY_TYPE
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec, value_spec
from penstock.state.stored_blocks import as_bytes, conform

__all__ = ["BoundUnionListState", "UnionListState", "Unions", "unions"]

T = TypeVar("T")

_FORMAT: Final = 1


class UnionListState(PartListState[T], Generic[T]):
    """A list for each part of a step without a key, which has the items of all parts after a restore.

    A restore is a start with another number of tasks, from a savepoint or from a dump. `get` returns the items that all
    parts had at the last restore, in the order of the parts, followed by the items that this part has added since, but
    not those that other parts add. `set` and `clear` replace everything that the part sees, and also the items that it
    contributes to the next union. Otherwise a part contributes the items that it has added. The methods are those of
    `ListState`.

    >>> class Seen(ProcessFunction):
    ...     shards = UnionListState(str)
    ...     def process_record(self, record, ctx):
    ...         if record.shard not in self.shards.get():
    ...             self.shards.add(record.shard)

    Args:
        item_type: the type of the items, as for `ValueState`.

    """

    def spec(self) -> StateSpec:
        """Return how the state is stored: the part's own items, and the number of the union that they replace."""
        item = value_spec(self._checked_name(), self._item_type)
        return StateSpec(self.name, _UnionForm(item), _UnionForm.arrow_type(item), None)


class _Own(list[Any]):
    """The items of a part. For this part they replace the union with the number `replaced`."""

    __slots__ = ("replaced",)

    def __init__(self, items: Iterable[Any], replaced: int = 0) -> None:
        super().__init__(items)
        self.replaced = replaced


@dataclass(frozen=True)
class _UnionForm(CustomColumnCodec):
    """The items of parts as a struct of an Arrow list and the number; no items and no number are stored as null."""

    item: StateSpec

    @staticmethod
    def arrow_type(item: StateSpec) -> pa.DataType:
        """Return the type of the column."""
        return pa.struct([("items", pa.list_(item.arrow_type)), ("replaced", pa.int64())])

    def parts(self) -> dict[str, StateSpec]:
        return {"item": self.item}

    def to_python(self, column: pa.Array) -> list[Any]:
        items, replaced = column.flatten()
        found = split_elements(parts_of_column(self.item, elements(items)), items)
        return [
            None if number is None else _Own(own or (), number)
            for own, number in zip(found, replaced.to_pylist(), strict=True)
        ]

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        items = list(itertools.chain.from_iterable(value for value in values if value))
        own = pa.ListArray.from_arrays(offsets_of(values), column_of_parts(self.item, items))
        numbers = [getattr(value, "replaced", 0) for value in values]
        nothing = [not value and not number for value, number in zip(values, numbers, strict=True)]
        fields = list(self.arrow_type(self.item))
        return pa.StructArray.from_arrays(
            [own, pa.array(numbers, pa.int64())], fields=fields, mask=pa.array(nothing, pa.bool_())
        )


class BoundUnionListState(OneList, BoundListState):
    """A union list state at run time."""

    __slots__ = ("_restored",)

    def __init__(self, column: StateColumn, cursor: Cursor) -> None:
        super().__init__(column, cursor)
        self._restored = _NOTHING

    def restore(self, restored: Restored) -> None:
        """Use this union from now on."""
        self._restored = restored

    def get(self) -> list[Any]:  # noqa: D102  # as declared
        seen, own = self._seen()
        return [*seen, *own]

    def set(self, items: Iterable[Any] | None) -> None:  # noqa: D102  # as declared
        self._replace(_Own(self._fit(items or ()), self._restored.number))

    def clear(self) -> None:  # noqa: D102  # as declared
        self.set(None)

    def __len__(self) -> int:
        seen, own = self._seen()
        return len(seen) + len(own)

    def _seen(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the items of the union that the part sees, and its own items that follow them."""
        held: Any = self._held()
        restored = self._restored
        if held is not None and held.replaced == restored.number:
            return (), held
        return restored.items, (held or ())[restored.counts.get(self._cursor.key, 0) :]

    def _replace(self, held: Any) -> None:
        super()._replace(held if isinstance(held, _Own) else _Own(held))


class _CheckedUnionListState(BoundUnionListState, CheckedListState):
    """A union list state that checks at once whether new items can be stored."""

    __slots__ = ()


UnionListState.run_time = (BoundUnionListState, _CheckedUnionListState)


class _Stored(msgspec.Struct):
    """The stored unions of a step: for each state the number of the union, and the items of the parts that had any."""

    format: int
    unions: dict[str, tuple[int, bytes]]


class Restored:
    """The union of one state, read on first use."""

    def __init__(self, number: int, rows: pa.RecordBatch | None, item: StateSpec | None) -> None:
        self.number: Final = number
        self._rows = rows
        self._item = item

    @functools.cached_property
    def items(self) -> Sequence[Any]:
        """The items of all parts, in the order of the parts."""
        if self._rows is None or self._item is None:
            return ()
        return parts_of_column(self._item, elements(self._rows.column(1)))

    @functools.cached_property
    def counts(self) -> dict[int, int]:
        """The number of items of each part, by its key."""
        if self._rows is None:
            return {}
        lengths = np.diff(self._rows.column(1).offsets.to_numpy()).tolist()
        return dict(zip(self._rows.column(0).to_pylist(), lengths, strict=True))


_NOTHING: Final = Restored(0, None, None)


class Unions:
    """The unions that a slot keeps, by state. `specs` are the states of the step. Raises StateError if unreadable."""

    def __init__(self, stored: bytes | None, specs: Sequence[StateSpec]) -> None:
        self._found: Final[dict[str, Restored]] = {}
        if stored is None:
            return
        known = msgspec.msgpack.decode(stored, type=_Stored)
        if known.format != _FORMAT:
            raise StateError(
                f"The stored unions have the format {known.format}; this penstock reads {_FORMAT}."
            )
        for spec in specs:
            if isinstance(spec.python_type, _UnionForm) and spec.name in known.unions:
                number, rows = known.unions[spec.name]
                batch = conform(
                    pa.ipc.open_stream(rows).read_next_batch(), _schema(spec.name, spec.arrow_type)
                )
                self._found[spec.name] = Restored(number, batch, spec.python_type.item)

    def __getitem__(self, name: str) -> Restored:
        return self._found.get(name, _NOTHING)


def unions(tables: Mapping[int, pa.RecordBatch], states: Mapping[str, pa.DataType]) -> bytes | None:
    """Build the unions of a step from the rows of all its key groups; None if it has no union list state.

    `states` are its union list states with their stored types. Call it when the state of a step is restored. The result
    depends on the content of the rows only.
    """
    rows = [tables[group] for group in sorted(tables)]
    found: dict[str, tuple[int, bytes]] = {}
    for name, kind in states.items():
        keys: list[pa.Array] = [pa.array([], PART_KEY_TYPE)]
        items: list[pa.Array] = [pa.array([], kind.field("items").type)]
        last = 0
        for part in rows:
            own, replaced = part.column(name).flatten()
            some = own.is_valid()
            keys.append(part.column(KEY_COLUMN).filter(some))
            items.append(own.filter(some))
            last = max(last, *(number or 0 for number in replaced.to_pylist()), 0)
        columns = [pa.concat_arrays(keys), pa.concat_arrays(items)]
        # A higher number than any part has seen, so no part has replaced this union.
        batch = pa.RecordBatch.from_arrays(columns, schema=_schema(name, kind))
        found[name] = (last + 1, as_bytes(batch))
    return msgspec.msgpack.encode(_Stored(_FORMAT, found)) if found else None


def _schema(name: str, kind: pa.DataType) -> pa.Schema:
    return pa.schema([(KEY_COLUMN, PART_KEY_TYPE), (name, kind.field("items").type)])
