"""Multisets: the values of a group with their counts, for aggregates that must know what remains when one goes."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import Field, type_of_fields
from penstock.state.lists import ListState, elements, offsets_of_lengths
from penstock.state.values import KeyedState
from penstock.tables.accumulators import Given, Opened, SumOf
from penstock.tables.value_order import order_codes

__all__ = ["MultisetAggregate", "MultisetFunction"]

MultisetFunction: TypeAlias = Literal["count", "sum", "avg", "min", "max", "first", "last"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class MultisetAggregate:
    """An aggregate of the different values of a group, which are kept with their counts, sorted.

    `count`, `sum` and `avg` are those of the different values, `min` and `max` of all. `first` and `last` need `order`.
    """

    def __init__(
        self, name: str, function: MultisetFunction, argument: Field, order: Field | None = None
    ) -> None:
        self._function: Final = function
        self._ordered: Final = order is not None
        self._sum: Final = (
            SumOf(name, argument, averages=function == "avg") if function in ("sum", "avg") else None
        )
        if self._sum is not None:
            self.result = self._sum.result
        elif function == "count":
            self.result = Field(name, int, pa.int64(), nullable=False)
        else:
            self.result = Field(name, argument.python_type, argument.arrow_type, nullable=True)
        fields = [
            Field("value", argument.python_type, argument.arrow_type, nullable=False),
            Field("count", int, pa.int64(), nullable=False),
        ]
        if order is not None:
            fields.insert(0, Field("ordered_by", order.python_type, order.arrow_type, nullable=True))
        self._entry: Final = type_of_fields(fields)

    def state(self) -> KeyedState:
        """Declare the state: a list of values with their counts."""
        return ListState(self._entry)

    def open(self, stored: pa.Array) -> Opened:
        """Read the values."""
        return _OpenMultisets(stored, self._function, self._sum, ordered=self._ordered)


class _OpenMultisets:
    def __init__(
        self, stored: pa.Array, function: MultisetFunction, total: SumOf | None, *, ordered: bool
    ) -> None:
        self._kind: Final = stored.type
        self._function: Final = function
        self._sum: Final = total
        self._ordered: Final = ordered
        self._groups: Final = len(stored)
        self._places: Ints = pc.list_parent_indices(stored).to_numpy().astype(np.int64)
        self._entries: pa.Array = elements(stored) if len(stored) else pa.array([], self._kind.value_type)

    def add(self, given: Given) -> None:
        if not len(given.places):
            return
        fields = {field.name: field.type for field in self._kind.value_type}
        counts = np.ones(len(given.places), np.int64) if given.signs is None else given.signs
        columns = {"value": given.values, "count": pa.array(counts)}
        if self._ordered:
            assert given.orders is not None
            columns["ordered_by"] = given.orders
        new = [columns[name].cast(kind) for name, kind in fields.items()]
        more = pa.StructArray.from_arrays(new, fields=list(self._kind.value_type))
        both = pa.concat_arrays([self._entries, more])
        places = np.concatenate([self._places, given.places])
        codes = [places, *(order_codes(pc.struct_field(both, name)) for name in fields if name != "count")]
        order = np.lexsort(codes[::-1])
        is_first = np.ones(len(order), bool)
        is_first[1:] = np.logical_or.reduce([code[order][1:] != code[order][:-1] for code in codes])
        starts = np.flatnonzero(is_first)
        found = pc.struct_field(both, "count").to_numpy()[order]
        sums = np.add.reduceat(found, starts)
        kept = sums > 0
        rows = order[starts[kept]]
        self._places = places[rows]
        picked = both.take(pa.array(rows))
        arrays = [
            pa.array(sums[kept]) if name == "count" else pc.struct_field(picked, name) for name in fields
        ]
        self._entries = pa.StructArray.from_arrays(arrays, fields=list(self._kind.value_type))

    def results(self) -> pa.Array:
        lengths = self._lengths()
        if self._function == "count":
            return pa.array(lengths)
        values = pc.struct_field(self._entries, "value")
        if self._sum is not None:
            return self._total(values).results()
        ends = np.cumsum(lengths)
        rows = ends - 1 if self._function in ("max", "last") else ends - lengths
        return values.take(pa.array(rows, mask=lengths == 0))

    def _total(self, values: pa.Array) -> Opened:
        assert self._sum is not None
        opened = self._sum.open(pa.nulls(self._groups, self._sum.state_type))
        opened.add(Given(self._places, values, None))
        return opened

    def beyond(self) -> Mask | None:
        if self._sum is None:
            return None
        return self._total(pc.struct_field(self._entries, "value")).beyond()

    def _lengths(self) -> Ints:
        return np.bincount(self._places, minlength=self._groups).astype(np.int64)

    def to_arrow(self, holds: Mask) -> pa.Array:
        kept = holds[self._places]
        entries = self._entries if kept.all() else self._entries.filter(pa.array(kept))
        lengths = np.where(holds, self._lengths(), 0)
        return pa.ListArray.from_arrays(offsets_of_lengths(lengths), entries).cast(self._kind)
