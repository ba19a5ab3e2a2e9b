"""Column statistics: what the numbers of a table are like in two snapshots, to judge one by the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.snapshots.manifest import TableEntry
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import open_store

__all__ = ["ColumnStatistics", "TableStatistics", "statistics_of"]


@dataclass(frozen=True)
class ColumnStatistics:
    """The numbers in a column: how many there are and are missing, and the least, the mean, and so on.

    A field of a record has the name `column.field`. NaN and infinities count as missing. Without any numbers the
    others are None.
    """

    name: str
    values: int
    missing: int
    least: float | None
    mean: float | None
    deviation: float | None
    greatest: float | None


@dataclass(frozen=True)
class TableStatistics:
    """The columns with numbers of a table, in both snapshots; one of them may not have the column."""

    name: str
    before: tuple[ColumnStatistics, ...]
    after: tuple[ColumnStatistics, ...]


def statistics_of(a: str, b: str, tables: Iterable[str]) -> Iterator[TableStatistics]:
    """Yield the statistics of tables that both snapshots have.

    Raises NotThereError or DamagedSnapshotError when one of them cannot be read.
    """
    sides = []
    for uri in (a, b):
        store = open_store(uri)
        manifest = read_manifest(store)
        sides.append((store, manifest, {table.name: table for table in manifest.tables}))
    for name in tables:
        found = [_columns(known[name], read_table(store, manifest, name)) for store, manifest, known in sides]
        yield TableStatistics(name, *found)


class _Moments:
    """The running statistics of one column; batches are merged as by T. Chan (Algorithms for the variance, 1983)."""

    def __init__(self) -> None:
        self.values = self.missing = 0
        self.mean = self.squares = 0.0
        self.least, self.greatest = np.inf, -np.inf

    def add(self, column: pa.Array) -> None:
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        numbers = numbers[np.isfinite(numbers)]
        count = len(numbers)
        self.missing += len(column) - count
        if not count:
            return
        mean = float(numbers.mean())
        whole = self.values + count
        self.squares += float(((numbers - mean) ** 2).sum())
        self.squares += (mean - self.mean) ** 2 * self.values * count / whole
        self.mean += (mean - self.mean) * count / whole
        self.values = whole
        self.least = min(self.least, float(numbers.min()))
        self.greatest = max(self.greatest, float(numbers.max()))

    def found(self, name: str) -> ColumnStatistics:
        if not self.values:
            return ColumnStatistics(name, 0, self.missing, None, None, None, None)
        deviation = (self.squares / self.values) ** 0.5
        return ColumnStatistics(
            name, self.values, self.missing, self.least, self.mean, deviation, self.greatest
        )


def _columns(table: TableEntry, batches: Iterable[pa.RecordBatch]) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of all columns with numbers but the key's."""
    found: dict[str, _Moments] = {}
    for name, kind in _leaves(table.arrow_schema):
        if name.split(".")[0] not in table.key and _is_number(kind):
            found[name] = _Moments()
    for batch in batches:
        for name, moments in found.items():
            moments.add(_leaf(batch, name))
    return tuple(moments.found(name) for name, moments in found.items())


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _leaves(fields: Iterable[pa.Field], before: str = "") -> Iterator[tuple[str, pa.DataType]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, f"{before}{field.name}.")
        else:
            yield before + field.name, field.type


def _leaf(batch: pa.RecordBatch, name: str) -> pa.Array:
    first, *rest = name.split(".")
    column = batch.column(first)
    for part in rest:
        # A missing record has no fields.
        column = column.flatten()[column.type.get_field_index(part)]
    return column
