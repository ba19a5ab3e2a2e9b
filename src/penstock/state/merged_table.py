"""A merged table: the tables of all key groups of a slot as one, for a slot that runs many small rounds.

A round touches few keys of many key groups. Their rows are copied to one table when a round first finds them, and all
changes go there. `take_changes` returns them for the tables of the key groups, once for many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.group_table import GroupTable, held_rows
from penstock.state.key_index import Places, key_values

__all__ = ["GroupsOf", "MergedTable", "StateTable", "merge_changes"]

GroupsOf: TypeAlias = Callable[[pa.Array], npt.NDArray[np.uint16]]
"""Returns the key group of each key."""


class MergedTable:
    """The rows of all key groups, as `GroupTable` has those of one. `tables` may not change while it is used."""

    def __init__(self, schema: pa.Schema, tables: Mapping[int, GroupTable], groups_of: GroupsOf) -> None:
        self.schema: Final = schema
        self._tables: Final = tables
        self._groups_of: Final = groups_of
        self.recent: Final = GroupTable(schema)
        # Keys that have lost their row, which the tables still have.
        self._removed: set[Any] = set()
        self._changes: list[pa.RecordBatch] = []

    def find(self, keys: pa.Array) -> Places:
        """Return the place of each key's row, or ABSENT."""
        places = self.recent.find(keys)
        if not (places < 0).any() or not self._tables:
            return places
        missing = keys.filter(pa.array(places < 0))
        if self._removed:
            known = np.array([key in self._removed for key in key_values(missing)], bool)
            missing = missing.filter(pa.array(~known))
        found = self._stored(missing)
        if not found:
            return places
        for rows in found:
            self.recent.upsert(rows)
        return self.recent.find(keys)

    def _stored(self, keys: pa.Array) -> list[pa.RecordBatch]:
        """Return the rows that the tables have of keys."""
        groups = self._groups_of(keys)
        found = []
        for group in np.unique(groups):
            table = self._tables.get(int(group))
            if table is None:
                continue
            places = np.unique(table.find(keys.filter(pa.array(groups == group))))
            places = places[places >= 0]
            if len(places):
                found.append(table.rows(places))
        return found

    def rows(self, places: Places) -> pa.RecordBatch:
        """Return the rows at some places; rows of nulls where a place is ABSENT."""
        return self.recent.rows(places)

    def all_rows(self) -> pa.RecordBatch:
        """Return the rows of all keys."""
        for table in self._tables.values():
            self.find(table.all_rows().column(0))
        return self.recent.all_rows()

    def put(self, changes: pa.RecordBatch) -> None:
        """Insert or replace rows with distinct keys; a row without any value removes its key."""
        self.recent.upsert(changes)
        self._changes.append(changes)
        held = held_rows(changes)
        if self._removed:
            self._removed.difference_update(key_values(changes.column(0)))
        if not held.all():
            self._removed.update(key_values(changes.column(0).filter(pa.array(~held))))

    @property
    def has_changes(self) -> bool:
        """Whether there are changes to take."""
        return bool(self._changes)

    def take_changes(self) -> dict[int, pa.RecordBatch]:
        """Return the newest changed rows by key group. The table must not be used afterwards."""
        if not self._changes:
            return {}
        rows, self._changes = merge_changes(self._changes), []
        groups = self._groups_of(rows.column(0))
        order = np.argsort(groups, kind="stable")
        ordered = rows.take(pa.array(order))
        found, starts = np.unique(groups[order], return_index=True)
        ends = [*starts[1:], len(groups)]
        return {
            int(group): ordered.slice(start, end - start)
            for group, start, end in zip(found, starts, ends, strict=True)
        }


StateTable: TypeAlias = GroupTable | MergedTable
"""The table that a run of a step reads: that of its key group, or of all key groups of the slot."""


def merge_changes(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Merge changes into one batch; for a key that changed more than once, the last row counts."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches(parts)
    last = {key: place for place, key in enumerate(key_values(rows.column(0)))}
    return rows.take(pa.array(sorted(last.values())))
