"""Field aggregates: count, sum, smallest, largest and mean of a field in each window.

All of them are kept together, so that a command can choose another one while the job runs. As columns, they are added
in the order of the records, so that both roads give the same sums to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.errors import JobDefinitionError
from penstock.state.folding import AggregateFunction
from penstock.windows.parameters import Parameter

__all__ = ["AGGREGATES", "FieldAggregate", "FieldStatistics", "Statistics", "Totals", "choice_of"]

AGGREGATES: Final = ("count", "sum", "min", "max", "mean")


@dataclass(frozen=True)
class Totals:
    """What is known of the values in a window. Null values are not among them.

    `low` and `high` are the smallest and the largest of them, None as long as there is none.
    """

    count: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None


class FieldAggregate(AggregateFunction[Any, Totals, float]):
    """One of `AGGREGATES` over a numeric field of the records; without a field, the number of records.

    `aggregate` is a parameter of the windows: the setting of that name chooses another one.
    """

    def __init__(self, aggregate: str, field: str | None) -> None:
        self.field: Final = field
        self.aggregate: Final = choice_of(aggregate)

    def create_accumulator(self) -> Totals:
        """No values."""
        return Totals()

    def add(self, record: Any, totals: Totals) -> Totals:
        """One more record."""
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

    def get_result(self, totals: Totals) -> float | None:  # type: ignore[override]  # of no values there is no mean
        """The aggregate that is in force; None where there is no value, but for count and sum."""
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
        """The values of two windows."""
        lows = [low for low in (a.low, b.low) if low is not None]
        highs = [high for high in (a.high, b.high) if high is not None]
        return Totals(a.count + b.count, a.total + b.total, min(lows, default=None), max(highs, default=None))


@dataclass(frozen=True)
class Statistics:
    """All aggregates of the values in a window; of no values there is no smallest, largest and mean."""

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
        """The aggregates."""
        mean = totals.total / totals.count if totals.count else None
        return Statistics(totals.count, totals.total, totals.low, totals.high, mean)


def choice_of(aggregate: Any) -> Parameter:
    """The parameter of an aggregate. JobDefinitionError for what is none."""
    parameter = aggregate if isinstance(aggregate, Parameter) else Parameter(aggregate)
    parameter.read_with(_read_choice)
    return parameter


def _read_choice(value: Any) -> str:
    if value not in AGGREGATES:
        raise JobDefinitionError(
            f"The aggregate of windows is {value!r}; it is one of {', '.join(AGGREGATES)}."
        )
    found: str = value
    return found
