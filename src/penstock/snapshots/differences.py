"""Differences: the rows added, removed and changed between two snapshots, in any formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.snapshots.digests import Hashes, row_hashes
from penstock.snapshots.manifest import Manifest, TableEntry
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import Store, open_store
from penstock.snapshots.table_formats import json_rows

__all__ = ["Differences", "Sample", "TableDifference", "diff"]

SAMPLES: Final = 10

_Rows: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """One row that differs, as JSON values. `key` is empty for a table without key columns."""

    change: Literal["added", "removed", "changed"]
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class TableDifference:
    """The numbers of rows of a table that were added, removed, changed and unchanged, with samples."""

    name: str
    added: int
    removed: int
    changed: int
    unchanged: int
    samples: tuple[Sample, ...] = ()
    schema_changes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the table is the same in both snapshots."""
        return not (self.added or self.removed or self.changed or self.schema_changes)


@dataclass(frozen=True)
class Differences:
    """The differences between two snapshots; `tables` has the tables that are in both."""

    before: str
    after: str
    tables: tuple[TableDifference, ...]
    tables_added: tuple[str, ...] = ()
    tables_removed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both snapshots have the same tables with the same rows."""
        return all(table.same for table in self.tables) and not (self.tables_added or self.tables_removed)


def diff(a: str, b: str, *, samples: int = SAMPLES) -> Differences:
    """Compare two snapshots.

    Rows are matched by key (`TableInfo.key`); in a table without a key they are compared as a whole. Columns that are
    not in both snapshots with the same type do not count as changes of rows.

    Args:
        a: the URI of the earlier snapshot.
        b: the URI of the later snapshot.
        samples: the maximum number of sample rows for each table and kind of change.

    Raises NotThereError or DamagedSnapshotError when one of them cannot be read.

    """
    before, after = _Side.of(a), _Side.of(b)
    common = [name for name in before.tables if name in after.tables]
    return Differences(
        a,
        b,
        tuple(_compare(before, after, name, samples) for name in common),
        tables_added=tuple(name for name in after.tables if name not in before.tables),
        tables_removed=tuple(name for name in before.tables if name not in after.tables),
    )


@dataclass(frozen=True)
class _Side:
    """One of the two snapshots."""

    store: Store
    manifest: Manifest
    tables: dict[str, TableEntry]

    @classmethod
    def of(cls, uri: str) -> _Side:
        store = open_store(uri)
        manifest = read_manifest(store)
        return cls(store, manifest, {table.name: table for table in manifest.tables})

    def rows(self, name: str, places: _Rows) -> list[dict[str, Any]]:
        """Return the rows at these places, in this order."""
        found: dict[int, dict[str, Any]] = {}
        start = 0
        for batch in read_table(self.store, self.manifest, name) if len(places) else ():
            here = places[(places >= start) & (places < start + len(batch))]
            if len(here):
                shown = json_rows(batch.take(pa.array(here - start)))
                found.update(zip(here.tolist(), shown, strict=True))
            start += len(batch)
            if start > places.max():
                break
        return [found[place] for place in places.tolist()]


def _schema_changes(before: TableEntry, after: TableEntry) -> tuple[str, ...]:
    old, new = before.arrow_schema, after.arrow_schema
    changes = [f"column {name!r} was removed" for name in old.names if name not in new.names]
    changes += [f"column {name!r} was added" for name in new.names if name not in old.names]
    for name in old.names:
        if name in new.names and not old.field(name).equals(new.field(name)):
            changes.append(
                f"column {name!r} was {_format_field(old.field(name))} and is {_format_field(new.field(name))}"
            )
    if before.key != after.key:
        changes.append(f"the key was {list(before.key)} and is {list(after.key)}")
    return tuple(changes)


def _format_field(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _compare(before: _Side, after: _Side, name: str, samples: int) -> TableDifference:
    old, new = before.tables[name], after.tables[name]
    changes = _schema_changes(old, new)
    if not changes and old.digest == new.digest:
        return TableDifference(name, 0, 0, 0, old.rows)
    schemas = old.arrow_schema, new.arrow_schema
    shared = [
        column
        for column in schemas[0].names
        if column in schemas[1].names and schemas[0].field(column).type == schemas[1].field(column).type
    ]
    if old.key != new.key or not shared or not set(old.key) <= set(shared):
        # Rows cannot be matched.
        everything = np.arange(old.rows), np.arange(new.rows)
        matched = _Matched(everything[0], everything[1], np.zeros((0, 2), np.int64), 0)
    else:
        rest = [column for column in shared if column not in old.key] if old.key else []
        matched = _match(
            _keys_and_rest(before, name, list(old.key) or shared, rest),
            _keys_and_rest(after, name, list(new.key) or shared, rest),
        )
    return TableDifference(
        name,
        added=len(matched.added),
        removed=len(matched.removed),
        changed=len(matched.changed),
        unchanged=matched.unchanged,
        samples=_samples(before, after, old, matched, samples),
        schema_changes=changes,
    )


@dataclass(frozen=True)
class _Matched:
    """The places of rows only before, of rows only after, and of pairs of changed rows."""

    removed: _Rows
    added: _Rows
    changed: _Rows
    unchanged: int


def _keys_and_rest(side: _Side, name: str, key: list[str], rest: list[str]) -> tuple[Hashes, Hashes]:
    """Return the hashes of the keys and of the other columns, in one pass."""
    found: list[tuple[Hashes, Hashes]] = []
    for batch in read_table(side.store, side.manifest, name):
        keys = row_hashes(batch.select(key))
        # A batch without columns has no rows.
        others = row_hashes(batch.select(rest)) if rest else (np.zeros_like(keys[0]), np.zeros_like(keys[1]))
        found.append((keys, others))
    empty = np.zeros(0, np.uint64)

    def whole(part: int, lane: int) -> npt.NDArray[np.uint64]:
        return np.concatenate([pieces[part][lane] for pieces in found]) if found else empty

    return (whole(0, 0), whole(0, 1)), (whole(1, 0), whole(1, 1))


def _match(before: tuple[Hashes, Hashes], after: tuple[Hashes, Hashes]) -> _Matched:
    """Match rows by sorting the keys of both snapshots together: neighbours with equal keys are the same row."""
    old = len(before[0][0])
    first, second = (np.concatenate([before[0][lane], after[0][lane]]) for lane in (0, 1))
    # Rows with equal keys are matched by their number among those of the key, which is 0 if keys are unique.
    nth = np.concatenate([_number(before[0]), _number(after[0])])
    order = np.lexsort((nth, second, first)) if nth.any() else _sort(first, second)
    first, second, nth = first[order], second[order], nth[order]
    pair = (first[1:] == first[:-1]) & (second[1:] == second[:-1]) & (nth[1:] == nth[:-1])
    lower, upper = order[:-1][pair], order[1:][pair]
    single = np.ones(len(order), bool)
    single[1:] &= ~pair
    single[:-1] &= ~pair
    alone = np.sort(order[single])
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper) - old
    same = (before[1][0][lower] == after[1][0][upper]) & (before[1][1][lower] == after[1][1][upper])
    changed = np.stack([lower[~same], upper[~same]], axis=1)
    changed = changed[np.argsort(changed[:, 0])]
    return _Matched(alone[alone < old], alone[alone >= old] - old, changed, int(same.sum()))


def _sort(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    order = np.argsort(first, kind="stable")
    ordered = first[order]
    # The second hash can change the order only where more than two rows have the same first hash.
    if len(ordered) > 2 and (ordered[2:] == ordered[:-2]).any():
        order = np.lexsort((second, first))
    return order


def _number(keys: Hashes) -> _Rows:
    """Return the number of each row among the rows of its key, in row order."""
    numbers = np.zeros(len(keys[0]), np.int64)
    ordered = np.sort(keys[0])
    if not len(ordered) or not (ordered[1:] == ordered[:-1]).any():
        return numbers
    order = np.lexsort((keys[1], keys[0]))
    first, second = keys[0][order], keys[1][order]
    begins = np.ones(len(order), bool)
    begins[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    starts = np.flatnonzero(begins)
    numbers[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return numbers


def _samples(
    before: _Side, after: _Side, table: TableEntry, matched: _Matched, most: int
) -> tuple[Sample, ...]:
    def key(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in table.key if name in row}

    removed, added, changed = matched.removed[:most], matched.added[:most], matched.changed[:most]
    old = before.rows(table.name, np.concatenate([removed, changed[:, 0]]))
    new = after.rows(table.name, np.concatenate([added, changed[:, 1]]))
    pairs = zip(old[len(removed) :], new[len(added) :], strict=True)
    return (
        *(Sample("added", key(row), None, row) for row in new[: len(added)]),
        *(Sample("removed", key(row), row, None) for row in old[: len(removed)]),
        *(Sample("changed", key(a), a, b) for a, b in pairs),
    )
