"""Multisets: the values of a group with their counts, for aggregates that take values back."""

from __future__ import annotations

from collections.abc import Sequence
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
            SumOf(name, argument, averages=function == "avg", retracts=False)
            if function in ("sum", "avg")
            else None
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
        codes = [order_codes(pc.struct_field(both, name)) for name in fields if name != "count"]
        held = len(self._entries)
        places, news, changes = _collapse(given.places, [code[held:] for code in codes], counts)
        starts = np.searchsorted(self._places, places, "left"), np.searchsorted(self._places, places, "right")
        at, is_there = _find([code[:held] for code in codes], [code[held:][news] for code in codes], *starts)
        sums = pc.struct_field(self._entries, "count").to_numpy().copy()
        sums[at[is_there]] += changes[is_there]
        # New values are inserted in order, unless they are taken away.
        comes = ~is_there & (changes > 0)
        rows = np.insert(np.arange(held), at[comes], held + news[comes])
        sums = np.insert(sums, at[comes], changes[comes])
        kept = sums > 0
        self._places = np.insert(self._places, at[comes], places[comes])[kept]
        picked = both.take(pa.array(rows[kept]))
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


def _collapse(places: Ints, codes: Sequence[Ints], changes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return each different value of each group, sorted: its group, its row, and by how much its count changes."""
    order = np.lexsort([*codes[::-1], places])
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.logical_or.reduce([code[order][1:] != code[order][:-1] for code in (places, *codes)])
    starts = np.flatnonzero(is_first)
    rows = order[starts]
    return places[rows], rows, np.add.reduceat(changes[order], starts)


def _find(held: Sequence[Ints], wanted: Sequence[Ints], low: Ints, high: Ints) -> tuple[Ints, Mask]:
    """Return the place of each wanted value among the sorted ones from `low` to `high`, and whether it is there."""
    ends = high
    while (searched := low < high).any():
        middle = (low + high) // 2
        # A position that is already found may be after the last value.
        place = np.minimum(middle, len(held[0]) - 1)
        is_below = _compare(held, wanted, place) < 0
        low = np.where(searched & is_below, middle + 1, low)
        high = np.where(searched & ~is_below, middle, high)
    is_there = low < ends
    is_there[is_there] = _compare(held, [code[is_there] for code in wanted], low[is_there]) == 0
    return low, is_there


def _compare(held: Sequence[Ints], wanted: Sequence[Ints], places: Ints) -> Ints:
    """Return whether held values are smaller (-1), equal (0) or larger (1) than the wanted ones."""
    found = np.zeros(len(places), np.int64)
    for code, other in zip(held, wanted, strict=True):
        value = code[places]
        found = np.where(found == 0, np.sign((value > other).astype(np.int64) - (value < other)), found)
    return found
