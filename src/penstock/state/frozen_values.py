"""Frozen values: the values that an interval has changed, which become rows in pieces.

The next interval may change the same keys meanwhile. Values are replaced, never changed in place, so the old ones of
these keys are kept: by the column during a round, here after it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.group_table import KEY_COLUMN, Held, Rows, held_rows
from penstock.state.key_groups import order_groups
from penstock.state.row_cache import GroupsOf, RowCache
from penstock.state.state_column import StateColumn

__all__ = ["FrozenValues", "Lookup"]

Lookup: TypeAlias = Callable[[pa.Array], tuple[Held, pa.RecordBatch]]
"""Returns a mask of the keys that have a row, and their rows; rows of nulls for the others."""

# Values of this many keys become columns at once, and rows: about a millisecond's work.
_KEYS_AT_ONCE: Final = 2048
_ROWS_AT_ONCE: Final = 1024
# From this many changed keys per key group on average, the tables are asked directly, not the row cache.
_MANY_KEYS: Final = 32
_IS_CHANGED: Final = "is changed/"


class FrozenValues:
    """The values that have changed. `keys` are those of all states, each once.

    Args:
        schema: that of the rows.
        columns: the states, whose values must not change without `save` at the end of the round.
        changed: the keys of which each state has changed. It is not copied, since that takes long for many keys.

    """

    def __init__(
        self, schema: pa.Schema, columns: Mapping[str, StateColumn], changed: Mapping[str, dict[Any, None]]
    ) -> None:
        self._schema: Final = schema
        self._columns: Final = columns
        self._changed: Final = changed
        self._saved: Final[dict[str, dict[Any, Any]]] = {name: {} for name in columns}
        self._made: Final[list[pa.RecordBatch]] = []
        some = [keys for keys in changed.values() if keys]
        self.keys: Final = some[0] if len(some) == 1 else dict.fromkeys(itertools.chain.from_iterable(some))

    def save(self, name: str, before: Mapping[Any, Any]) -> None:
        """Keep the values that keys had in a state before they changed."""
        saved, changed = self._saved[name], self._changed[name]
        for key, value in before.items():
            if key in changed:
                saved.setdefault(key, value)

    def make_columns(self) -> Iterator[None]:
        """Make columns of the values, in pieces.

        Keys come in the order of their changes, so their values are near each other in memory.
        """
        keys = iter(self.keys)
        while some := list(itertools.islice(keys, _KEYS_AT_ONCE)):
            self._made.append(self._columns_of(some))
            yield

    def columns(self) -> pa.RecordBatch:
        """Return the columns: the keys, the values, and for each state whether it has changed."""
        return pa.concat_batches(self._made)

    def _columns_of(self, keys: Sequence[Any]) -> pa.RecordBatch:
        found = {KEY_COLUMN: pa.array(keys, self._schema.field(KEY_COLUMN).type)}
        for name, column in self._columns.items():
            changed, values = self._changed[name], column.values
            if not changed:
                found[name] = pa.nulls(len(keys), column.spec.arrow_type)
                found[_IS_CHANGED + name] = pa.array([False] * len(keys))
                continue
            are_changed = [changed is self.keys or key in changed for key in keys]
            # Values that have not changed are not needed.
            old = self._saved[name]
            if column.dirty:
                old = {**column.dirty, **old}
            now = [
                None if not is_changed else old[key] if key in old else values[key]
                for key, is_changed in zip(keys, are_changed, strict=True)
            ]
            found[name] = column.spec.to_arrow(now)
            found[_IS_CHANGED + name] = pa.array(are_changed)
        return pa.RecordBatch.from_pydict(found)

    def rows(self, columns: pa.RecordBatch, lookup: Lookup) -> pa.RecordBatch:
        """Return the new rows of some of the columns' keys, in their order. `lookup` finds the former rows.

        Keys without state before and after are left out.
        """
        keys = columns.column(0)
        were_held, before = lookup(keys)
        arrays = [keys, *(_after(columns, before, name) for name in self._columns)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        is_change = held_rows(rows) | were_held
        return rows if is_change.all() else rows.filter(pa.array(is_change))

    def by_group(
        self, groups_of: GroupsOf, tables: Callable[[int], Rows], cache: RowCache
    ) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the new rows of key groups, a few at once, perhaps none; the caller puts them into the tables.

        Afterwards the row cache has the new rows too, or is empty.
        """
        for _ in self.make_columns():
            yield []
        if not self.keys:
            return
        columns = self.columns()
        order, bounds = order_groups(groups_of(columns.column(0)))
        columns = columns.take(pa.array(order))
        # If many rows change, they are looked up in the tables, since the cache would drop its rows.
        is_sparse, found = columns.num_rows < _MANY_KEYS * len(bounds), []

        def lookup(keys: pa.Array) -> tuple[Held, pa.RecordBatch]:
            if is_sparse:
                places = cache.find(keys, groups_of)
                return places >= 0, cache.rows(places)
            parts = [
                tables(group).lookup(keys.slice(start - first, end - start)) for group, start, end in some
            ]
            held, rows = zip(*parts, strict=True)
            return np.concatenate(held), pa.concat_batches(rows)

        while bounds:
            yield []
            first = bounds[0][1]
            count = max(1, bisect.bisect([end - first for *_, end in bounds], _ROWS_AT_ONCE))
            some, bounds = bounds[:count], bounds[count:]
            rows = self.rows(columns.slice(first, some[-1][2] - first), lookup)
            found.append(rows)
            _, of_rows = order_groups(groups_of(rows.column(0)))
            yield [(group, rows.slice(start, end - start)) for group, start, end in of_rows]
        if is_sparse:
            cache.put(pa.concat_batches(found))
        else:
            cache.clear()


def _after(columns: pa.RecordBatch, before: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a state by key, for the keys whose values have changed."""
    is_changed, values, old = columns.column(_IS_CHANGED + name), columns.column(name), before.column(name)
    changed = pc.sum(is_changed).as_py() or 0
    if changed == len(values):
        return values
    if not changed:
        return old
    places = np.where(is_changed.to_numpy(zero_copy_only=False), len(old), 0) + np.arange(len(old))
    return pa.concat_arrays([old, values]).take(pa.array(places))
