"""A merged table: the tables of all key groups of a slot as one, for a slot that runs many small rounds.

A round touches few keys of many key groups. The tables of the key groups stay as they are; changes go to one table of
recent rows, and rows that a larger round reads to the slot's row cache. `take_changes` returns the changes for the
tables of the key groups, once for many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.frozen_values import FrozenValues
from penstock.state.group_table import GroupTable, Held, held_rows
from penstock.state.key_groups import order_groups
from penstock.state.key_index import ABSENT, Places, distinct_keys, key_values
from penstock.state.open_values import OpenValues
from penstock.state.row_cache import GroupsOf, RowCache
from penstock.state.state_spec import StateSpec

__all__ = ["MergedTable", "StateTable", "merge_changes"]

# Up to this many keys are looked up and changed one by one, which costs less than whole columns.
_FEW_KEYS: Final = 4
# Duplicates are removed once this many changed keys wait, or as many as were distinct the last time.
_MAX_REPEATED: Final = 1 << 18
# This many rows that were changed one by one wait, and are then put into the table of recent rows together.
_MAX_NEWEST: Final = 1024
# A round of up to this many records opens the values of its keys, whatever other keys there are.
_MAX_OPEN_RECORDS: Final = 4000
# If the values of more keys are open, the unchanged ones are forgotten.
_MAX_OPEN: Final = 1 << 17


class MergedTable:
    """The rows of all key groups, as `GroupTable` has those of one. `tables` may not change while it is used.

    `opened` are values that equal the rows of the tables. While changes are `frozen`, the tables change by these only,
    and `thaw` is called when their rows are needed; it puts all of them into the tables.
    """

    def __init__(
        self,
        schema: pa.Schema,
        tables: Mapping[int, GroupTable],
        cache: RowCache,
        groups_of: GroupsOf,
        opened: OpenValues | None = None,
        thaw: Callable[[], None] | None = None,
    ) -> None:
        self.schema: Final = schema
        self._tables: Final = tables
        self._cache: Final = cache
        self.groups_of: Final = groups_of
        self._recent: Final = GroupTable(schema)
        # The rows that were changed last, one by one, and whether each has a value.
        self._newest: Final[dict[Any, tuple[pa.RecordBatch, bool]]] = {}
        # Keys that have lost their row, which the tables still have.
        self._removed: set[Any] = set()
        # The keys that have changed, some of them several times. The first array has each of its keys once.
        self._changed: list[pa.Array] = []
        self._repeated = 0
        self._open = opened
        self._goes_on = opened is None
        self._thaw: Final = thaw
        self.frozen: FrozenValues | None = None

    def open(self, specs: Sequence[StateSpec], keys: Sequence[pa.Array]) -> OpenValues | None:
        """Return the values of a round's keys, which stay open until something else uses the table.

        A round of many records opens only values for which there is room; else returns None, and the round needs rows.
        """
        if self._open is not None and not self._goes_on:
            self._goes_on = True
            if not self._open.go_on(specs, self):
                self._open = None
        # If frozen values were forgotten, they would be looked for in rows.
        if self._open is not None and len(self._open) > _MAX_OPEN and self.frozen is None:
            self._open.forget_unchanged()
            if len(self._open) > _MAX_OPEN // 2:
                self.close()
        opened = OpenValues(specs, self) if self._open is None else self._open
        distinct = distinct_keys(keys[0] if len(keys) == 1 else pa.concat_arrays(keys)) if keys else []
        new = opened.untouched(distinct)
        is_large = sum(map(len, keys)) > _MAX_OPEN_RECORDS
        if is_large and not (opened.outlives_rows and len(opened) + len(new) <= _MAX_OPEN):
            return None
        opened.touch(new)
        self._open = opened
        return opened

    def freeze(self) -> FrozenValues | None:
        """Return the changes if all of them are open values that stay open; else None."""
        if self._changed or self._open is None or not self._open.outlives_rows:
            return None
        self.frozen = self._open.freeze()
        return self.frozen

    def end_frozen(self) -> None:
        """Note that the tables have the frozen values."""
        self.frozen = None
        if self._open is not None:
            self._open.end_frozen()

    def _await_frozen(self) -> None:
        if self.frozen is not None:
            assert self._thaw is not None
            self._thaw()
            assert self.frozen is None

    def close(self) -> None:
        """Make rows of open values."""
        self._await_frozen()
        if self._open is not None:
            opened, self._open = self._open, None
            changes = opened.take_changes()
            if changes is not None:
                self.put(changes)

    def release(self) -> OpenValues | None:
        """Return the values that are open after changes were taken, if any. They no longer belong to the table."""
        opened, self._open = self._open, None
        return opened

    @property
    def recent(self) -> GroupTable:
        """The table of the rows that have changed."""
        self.close()
        return self._settled()

    def _settled(self) -> GroupTable:
        if self._newest:
            self._recent.upsert(pa.concat_batches([row for row, _ in self._newest.values()]))
            self._newest.clear()
        return self._recent

    def lookup(self, keys: pa.Array) -> tuple[Held, pa.RecordBatch]:
        """Return a mask of the keys that have a row, and their rows; rows of nulls for the others.

        The keys must be distinct. Open values are ignored.
        """
        if self.frozen is not None and not self.frozen.keys.keys().isdisjoint(key_values(keys)):
            self._await_frozen()
        if len(keys) <= _FEW_KEYS:
            return self._lookup_few(keys)
        places = self._settled().find(keys)
        changed = places >= 0
        if changed.all():
            return changed, self._recent.rows(places)
        if not changed.any():
            cached = self._cached(keys)
            return cached >= 0, self._cache.rows(cached)
        others = np.flatnonzero(~changed)
        cached = self._cached(keys.take(pa.array(others)))
        rows = pa.concat_batches([self._recent.rows(places[changed]), self._cache.rows(cached)])
        back = np.empty(len(keys), np.int64)
        back[changed] = np.arange(len(keys) - len(others))
        back[others] = np.arange(len(keys) - len(others), len(keys))
        held = changed.copy()
        held[others] = cached >= 0
        return held, rows.take(pa.array(back))

    def _cached(self, keys: pa.Array) -> Places:
        """Return the places in the cache of the rows of keys that have no recent row."""
        places = self._cache.find(keys, self.groups_of)
        if self._removed:
            places[~self._not_removed(keys)] = ABSENT
        return places

    def _not_removed(self, keys: pa.Array) -> Held:
        return np.array([key not in self._removed for key in key_values(keys)], bool)

    def _lookup_few(self, keys: pa.Array) -> tuple[Held, pa.RecordBatch]:
        found = [self._lookup_one(key, keys.slice(i, 1)) for i, key in enumerate(key_values(keys))]
        rows = [row for row, _ in found]
        held = np.array([is_held for _, is_held in found], bool)
        return held, rows[0] if len(rows) == 1 else pa.concat_batches(rows)

    def _lookup_one(self, key: Any, keys: pa.Array) -> tuple[pa.RecordBatch, bool]:
        """Return the row of a key, which is the only one of `keys`, and whether it has a value."""
        newest = self._newest.get(key)
        if newest is not None:
            return newest
        held, row = self._recent.lookup(keys)
        if not held[0] and key not in self._removed:
            table = self._tables.get(int(self.groups_of(keys)[0]))
            if table is not None:
                held, row = table.lookup(keys)
        return row, bool(held[0])

    def all_rows(self) -> pa.RecordBatch:
        """Return the rows of all keys."""
        parts = [self.recent.all_rows()]
        for table in self._tables.values():
            rows = table.all_rows()
            keys = rows.column(0)
            other = self.recent.find(keys) < 0
            if self._removed:
                other &= self._not_removed(keys)
            parts.append(rows.filter(pa.array(other)))
        return pa.concat_batches(parts)

    def put(self, changes: pa.RecordBatch) -> None:
        """Insert or replace rows with distinct keys; a row without any value removes its key."""
        self._await_frozen()
        held, keys = held_rows(changes), changes.column(0)
        self._note_changed(keys)
        if self._removed:
            self._removed.difference_update(key_values(keys))
        if not held.all():
            self._removed.update(key_values(keys.filter(pa.array(~held))))
        if len(keys) > _FEW_KEYS:
            self._settled().upsert(changes)
            return
        for i, (key, is_held) in enumerate(zip(key_values(keys), held.tolist(), strict=True)):
            self._newest[key] = changes.slice(i, 1), is_held
        if len(self._newest) > _MAX_NEWEST:
            self._settled()

    def _note_changed(self, keys: pa.Array) -> None:
        if self._changed:
            self._repeated += len(keys)
        self._changed.append(keys)
        if self._repeated > max(_MAX_REPEATED, len(self._changed[0])):
            self._changed, self._repeated = [self._distinct()], 0

    def _distinct(self) -> pa.Array:
        """Return the keys that have changed, each once."""
        keys = pa.concat_arrays(self._changed)
        if pa.types.is_struct(keys.type):
            return pa.array(distinct_keys(keys), keys.type)
        return pc.unique(keys)

    @property
    def has_changes(self) -> bool:
        """Whether there are changes to take."""
        return bool(self._changed) or (self._open is not None and self._open.has_changes)

    def take_changes(self) -> dict[int, pa.RecordBatch]:
        """Return the newest changed rows by key group. Afterwards only `release` may be called."""
        changes = self._changed_rows()
        if changes is None:
            return {}
        order, bounds = order_groups(self.groups_of(changes.column(0)))
        ordered = changes.take(pa.array(order))
        return {group: ordered.slice(start, end - start) for group, start, end in bounds}

    def _changed_rows(self) -> pa.RecordBatch | None:
        """Return the newest rows of the keys that have changed; a row without any value belongs to a removed key."""
        self._await_frozen()
        if not self._changed and self._open is not None:
            return self._open.take_changes()
        self.close()
        if not self._changed:
            return None
        keys, self._changed = self._distinct(), []
        # Removed keys have no rows left.
        _, rows = self._settled().lookup(keys)
        return rows.set_column(0, self.schema.field(0), keys)


StateTable: TypeAlias = GroupTable | MergedTable
"""The table that a run of a step reads: that of its key group, or of all key groups of the slot."""


def merge_changes(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Merge changes into one batch; for a key that changed more than once, the last row counts."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches(parts)
    last = {key: place for place, key in enumerate(key_values(rows.column(0)))}
    return rows.take(pa.array(sorted(last.values())))
