"""A row cache: rows that were read from the tables of the key groups of a slot, in one table.

Rounds with records of many key groups find a row here with one lookup, instead of one for each key group. The cache
lives as long as the tables, and each of its rows equals that of its key group's table. A small table is read as a whole
when the first of its keys is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.group_table import GroupTable
from penstock.state.key_index import Places

__all__ = ["GroupsOf", "RowCache"]

GroupsOf: TypeAlias = Callable[[pa.Array], npt.NDArray[np.uint16]]
"""Returns the key group of each key."""

# A cache that has grown to this size is emptied, and then refilled with the rows that are read.
_MAX_BYTES: Final = 32 << 20
# Tables that take at most this share of it together are read as a whole.
_SHARE_OF_TABLES: Final = 2


class RowCache:
    """Rows of the tables of a slot. Code that changes a row of a table puts it here as well."""

    def __init__(
        self, schema: pa.Schema, tables: Mapping[int, GroupTable], *, max_bytes: int = _MAX_BYTES
    ) -> None:
        self._schema: Final = schema
        self._tables: Final = tables
        self._max_bytes: Final = max_bytes
        self._rows = GroupTable(schema)
        # The key groups whose rows are all here.
        self._whole: set[int] = set()

    @property
    def nbytes(self) -> int:
        """The approximate memory of the cache, in bytes."""
        return self._rows.nbytes if self._rows.keys else 0

    def find(self, keys: pa.Array, groups_of: GroupsOf) -> Places:
        """Return the place of the row of each distinct key, or ABSENT. Missing rows are read from the tables."""
        places = self._rows.find(keys)
        missing = np.flatnonzero(places < 0)
        if not len(missing) or not self._tables:
            return places
        wanted = keys if len(missing) == len(keys) else keys.take(pa.array(missing))
        found = self._stored(wanted, groups_of(wanted))
        if not found:
            return places
        if self.nbytes > self._max_bytes:
            self.clear()
            return self.find(keys, groups_of)
        self._rows.upsert(pa.concat_batches(found))
        return self._rows.find(keys)

    def rows(self, places: Places) -> pa.RecordBatch:
        """Return the rows at places from the last `find`; rows of nulls where a place is ABSENT."""
        return self._rows.rows(places)

    def put(self, changes: pa.RecordBatch) -> None:
        """Take over changed rows of the tables; a row without any value removes its key."""
        if self._rows.keys or self._whole:
            self._rows.upsert(changes)

    def clear(self) -> None:
        """Forget all rows, since many of the tables have changed."""
        self._rows = GroupTable(self._schema)
        self._whole.clear()

    def _stored(self, keys: pa.Array, groups: npt.NDArray[np.uint16]) -> list[pa.RecordBatch]:
        """Return the rows of keys in the tables, perhaps with other rows of their key groups."""
        is_new = [group not in self._whole and group in self._tables for group in groups.tolist()]
        if not any(is_new):
            return []
        keys, groups = keys.filter(pa.array(is_new)), groups[is_new]
        if sum(table.nbytes for table in self._tables.values()) <= self._max_bytes // _SHARE_OF_TABLES:
            new = np.unique(groups).tolist()
            self._whole.update(new)
            return [self._tables[group].all_rows() for group in new]
        order = np.argsort(groups, kind="stable")
        keys, groups = keys.take(pa.array(order)), groups[order]
        starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])).tolist()
        found = []
        for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
            table = self._tables[int(groups[start])]
            places = table.find(keys.slice(start, end - start))
            places = places[places >= 0]
            if len(places):
                found.append(table.rows(places))
        return found
