"""Column statistics: the distributions of the numbers of a table in two snapshots, to judge one by the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.snapshots.manifest import TableEntry
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import open_store

__all__ = ["ColumnComparison", "ColumnStatistics", "TableStatistics", "statistics_of"]

# If a column has more numbers, every second one is dropped, then every second of the rest, and so on.
_MOST_KEPT: Final = 1_000_000
_BARS: Final = 24
# Single numbers lie further out, and would squeeze all others into one bar.
_SHOWN: Final = (0.005, 0.995)
_BINS: Final = 10

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ColumnStatistics:
    """The numbers in a column: how many there are, how many are missing, the least, the mean, quantiles and so on.

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
    q05: float | None = None
    q25: float | None = None
    q50: float | None = None
    q75: float | None = None
    q95: float | None = None


@dataclass(frozen=True)
class ColumnComparison:
    """How far the numbers of a column moved between the snapshots.

    `kolmogorov_smirnov` is the largest difference of the shares of numbers below any bound, from 0 to 1;
    `stability_index` the population stability index over the tenths of the numbers before, where 0.1 is little and 0.25
    is much. `before` and `after` count the numbers in bars of equal width from `lower` to `upper`; numbers outside are
    in the first and last bar.
    """

    name: str
    kolmogorov_smirnov: float
    stability_index: float
    lower: float
    upper: float
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class TableStatistics:
    """The columns with numbers of a table, in both snapshots, and how those in both compare."""

    name: str
    before: tuple[ColumnStatistics, ...]
    after: tuple[ColumnStatistics, ...]
    compared: tuple[ColumnComparison, ...] = ()


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
        before, after = (
            _columns(known[name], read_table(store, manifest, name)) for store, manifest, known in sides
        )
        kept = {
            column: (numbers.kept(), after[column].kept())
            for column, numbers in before.items()
            if column in after
        }
        yield TableStatistics(
            name,
            tuple(numbers.found(column) for column, numbers in before.items()),
            tuple(numbers.found(column) for column, numbers in after.items()),
            tuple(_compare(column, *both) for column, both in kept.items() if all(map(len, both))),
        )


def _compare(name: str, before: _Numbers, after: _Numbers) -> ColumnComparison:
    """Compare sorted numbers."""
    everywhere = np.union1d(before, after)
    shares = [np.searchsorted(side, everywhere, side="right") / len(side) for side in (before, after)]
    bounds = np.unique(np.quantile(before, np.linspace(0, 1, _BINS + 1)[1:-1]))
    counts = [
        np.bincount(np.searchsorted(bounds, side), minlength=len(bounds) + 1) for side in (before, after)
    ]
    # Half a number more in each bin, since the index of an empty one is not finite.
    parts = [(count + 0.5) / (count + 0.5).sum() for count in counts]
    lower = min(float(np.quantile(side, _SHOWN[0])) for side in (before, after))
    upper = max(float(np.quantile(side, _SHOWN[1])) for side in (before, after))
    edges = np.linspace(lower, upper, _BARS + 1)[1:-1] if lower < upper else np.zeros(0)
    bars = [np.bincount(np.searchsorted(edges, side), minlength=len(edges) + 1) for side in (before, after)]
    return ColumnComparison(
        name,
        float(np.abs(shares[0] - shares[1]).max()),
        float(((parts[1] - parts[0]) * np.log(parts[1] / parts[0])).sum()),
        lower,
        upper,
        tuple(bars[0].tolist()),
        tuple(bars[1].tolist()),
    )


class _Statistics:
    """The running statistics of one column; batches are merged as by T. Chan (Algorithms for the variance, 1983)."""

    def __init__(self) -> None:
        self._kept: list[_Numbers] = []
        self._stride, self._skipped = 1, 0
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
        self._keep(numbers)
        mean = float(numbers.mean())
        whole = self.values + count
        self.squares += float(((numbers - mean) ** 2).sum())
        self.squares += (mean - self.mean) ** 2 * self.values * count / whole
        self.mean += (mean - self.mean) * count / whole
        self.values = whole
        self.least = min(self.least, float(numbers.min()))
        self.greatest = max(self.greatest, float(numbers.max()))

    def _keep(self, numbers: _Numbers) -> None:
        first = -self._skipped % self._stride
        self._skipped += len(numbers)
        self._kept.append(numbers[first :: self._stride].copy())
        while sum(map(len, self._kept)) > _MOST_KEPT:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2

    def kept(self) -> _Numbers:
        """Return the numbers in order, or a share of them."""
        return np.sort(np.concatenate(self._kept)) if self._kept else np.zeros(0)

    def found(self, name: str) -> ColumnStatistics:
        if not self.values:
            return ColumnStatistics(name, 0, self.missing, None, None, None, None)
        deviation = (self.squares / self.values) ** 0.5
        return ColumnStatistics(
            name,
            self.values,
            self.missing,
            self.least,
            self.mean,
            deviation,
            self.greatest,
            *np.quantile(self.kept(), (0.05, 0.25, 0.5, 0.75, 0.95)).tolist(),
        )


def _columns(table: TableEntry, batches: Iterable[pa.RecordBatch]) -> dict[str, _Statistics]:
    """Return the statistics of all columns with numbers but the key's, by name."""
    found: dict[str, _Statistics] = {}
    for name, kind in _leaves(table.arrow_schema):
        if name.split(".")[0] not in table.key and _is_number(kind):
            found[name] = _Statistics()
    for batch in batches:
        for name, statistics in found.items():
            statistics.add(_leaf(batch, name))
    return found


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
