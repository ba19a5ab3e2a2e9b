"""Field aggregates: count, sum, min, max and mean of a field in each window.

All of them are kept together, so a command can switch to another one while the job runs. Columns add values in the
order of the records, so their sums equal those of record-by-record processing to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import JobDefinitionError
from penstock.windows.column_aggregates import ColumnAggregate, mask_empty
from penstock.windows.window_parameters import Parameter

__all__ = [
    "AGGREGATES",
    "FieldAggregate",
    "FieldStatistics",
    "RecordCount",
    "Statistics",
    "Totals",
    "TotalsColumns",
    "choice_of",
]

AGGREGATES: Final = ("count", "sum", "min", "max", "mean")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Totals:
    """The totals of the values in a window, without null values.

    `low` and `high` are the smallest and the largest value, None while there is none.
    """

    count: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TotalsColumns:
    """Totals as columns. Without a value, `lows` and `highs` are infinite."""

    counts: Ints
    totals: Floats
    lows: Floats
    highs: Floats

    @classmethod
    def of(cls, stored: pa.Array) -> Self:
        """Read stored totals."""
        return cls(
            _fill(stored, "count", 0),
            _fill(stored, "total", 0.0),
            _fill(stored, "low", np.inf),
            _fill(stored, "high", -np.inf),
        )

    def take(self, rows: Ints) -> Self:
        """Return the totals of some rows. NEW, which is -1, selects an empty row appended at the end."""
        none = (0, 0.0, np.inf, -np.inf)
        columns = (self.counts, self.totals, self.lows, self.highs)
        return type(self)(*(np.append(column, at)[rows] for column, at in zip(columns, none, strict=True)))

    def add(self, places: Ints, values: Floats) -> None:
        """Add values one by one in the order of the records, since floating-point sums depend on the order."""
        np.add.at(self.totals, places, values)
        np.minimum.at(self.lows, places, values)
        np.maximum.at(self.highs, places, values)

    def to_arrow(self, kind: pa.DataType, holds: Mask) -> pa.Array:
        """Return the stored form, with a null for each window that `holds` no records."""
        # True only without a value, when both are infinite.
        is_empty = self.lows > self.highs
        columns = [
            pa.array(self.counts),
            pa.array(self.totals),
            mask_empty(self.lows, is_empty),
            mask_empty(self.highs, is_empty),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array(~holds))

    def results(self) -> dict[str, pa.Array]:
        """Return all of `AGGREGATES`, by name."""
        is_empty = self.counts == 0
        return {
            "count": pa.array(self.counts),
            "sum": pa.array(self.totals),
            "min": mask_empty(self.lows, is_empty),
            "max": mask_empty(self.highs, is_empty),
            "mean": mask_empty(self.totals / np.maximum(self.counts, 1), is_empty),
        }


def _fill(stored: pa.Array, name: str, value: float) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = pc.struct_field(stored, name).fill_null(value).to_numpy(zero_copy_only=False)
    return found


class FieldAggregate(ColumnAggregate[Totals, float]):
    """One of `AGGREGATES` over a numeric field of the records.

    `aggregate` is a parameter of the windows: the setting of that name switches to another one.
    """

    held = TotalsColumns

    def __init__(self, aggregate: str, field: str | None) -> None:
        self.field = field
        self.aggregate: Final = choice_of(aggregate)

    def create_accumulator(self) -> Totals:
        """Return the totals of no values."""
        return Totals()

    def add(self, record: Any, totals: Totals) -> Totals:
        """Add a record."""
        if self.field is None:
            return replace(totals, count=totals.count + 1)
        value = getattr(record, self.field)
        if value is None:
            return totals
        value = float(value)
        low, high = totals.low, totals.high
        return Totals(
            totals.count + 1,
            totals.total + value,
            value if low is None or value < low else low,
            value if high is None or value > high else high,
        )

    def get_result(self, totals: Totals) -> float | None:  # type: ignore[override]  # without values there is no mean
        """Return the current aggregate; min, max and mean are None without a value."""
        match self.aggregate.value:
            case "count":
                return float(totals.count)
            case "sum":
                return totals.total
            case "min":
                return totals.low
            case "max":
                return totals.high
        return totals.total / totals.count if totals.count else None

    def merge(self, a: Totals, b: Totals) -> Totals:
        """Merge the values of two windows."""
        lows = [low for low in (a.low, b.low) if low is not None]
        highs = [high for high in (a.high, b.high) if high is not None]
        return Totals(a.count + b.count, a.total + b.total, min(lows, default=None), max(highs, default=None))

    def values(self, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, Floats] | None:
        """Return the numbers; None if any is NaN, which columns would aggregate differently."""
        if self.field is None:
            rows = sum(batch.num_rows for batch in batches)
            return np.ones(rows, bool), np.zeros(rows)
        columns = [batch.column(self.field) for batch in batches]
        has_value = np.concatenate([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
        numbers = [column.fill_null(0).cast(pa.float64(), safe=False).to_numpy() for column in columns]
        values = np.concatenate(numbers)
        return None if np.isnan(values).any() else (has_value, values)

    def add_all(self, held: TotalsColumns, places: Ints, values: Floats) -> TotalsColumns:
        """Add numbers, in the order of the records."""
        held.counts[:] += np.bincount(places, minlength=len(held.counts))
        if self.field is not None:
            held.add(places, values)
        return held

    def results(self, held: TotalsColumns) -> list[pa.Array]:
        """Return the current aggregate as a column."""
        return [held.results()[self.aggregate.value]]


class RecordCount(FieldAggregate):
    """The number of records, as an integer."""

    def __init__(self) -> None:
        self.field = None

    def get_result(self, totals: Totals) -> int:
        """Return the number of records."""
        return totals.count

    def results(self, held: TotalsColumns) -> list[pa.Array]:
        """Return the number of records as a column."""
        return [pa.array(held.counts)]


@dataclass(frozen=True)
class Statistics:
    """All aggregates of the values in a window; `min`, `max` and `mean` are None without a value."""

    count: int
    sum: float
    min: float | None
    max: float | None
    mean: float | None


class FieldStatistics(FieldAggregate):
    """All of `AGGREGATES` over a numeric field of the records."""

    def __init__(self, field: str) -> None:
        super().__init__("mean", field)

    def get_result(self, totals: Totals) -> Statistics:  # type: ignore[override]  # all of them
        """Return all aggregates."""
        mean = totals.total / totals.count if totals.count else None
        return Statistics(totals.count, totals.total, totals.low, totals.high, mean)

    def results(self, held: TotalsColumns) -> list[pa.Array]:
        """Return all aggregates, one column each."""
        return list(held.results().values())


def choice_of(aggregate: Any) -> Parameter:
    """Return the parameter of an aggregate. Raises JobDefinitionError for an unknown one."""
    parameter = aggregate if isinstance(aggregate, Parameter) else Parameter(aggregate)
    parameter.read_with(_read_choice)
    return parameter


def _read_choice(value: Any) -> str:
    if value not in AGGREGATES:
        raise JobDefinitionError(
            f"The aggregate of windows is {value!r}; use one of {', '.join(AGGREGATES)}."
        )
    found: str = value
    return found
