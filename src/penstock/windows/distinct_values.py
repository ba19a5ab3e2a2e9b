"""Distinct values: exact aggregates of the different values of a field in each window, kept in sorted runs."""

from __future__ import annotations

import decimal
import enum
from bisect import bisect_left
from typing import Any, Final

import pyarrow as pa

from penstock.records.types import Field
from penstock.state.folded_states import AggregateFunction

__all__ = ["DistinctValues", "decimal_mean", "distinct_values"]

_LARGEST: Final = 2**63 - 1


class DistinctValues(AggregateFunction[Any, Any, Any]):
    """The number, the sum or the mean of the different values in a window.

    The accumulator has these values in sorted runs, each of which is longer than the next one: a new value is a run of
    its own, and joins runs that are not longer. So a window with many values costs little for each record. Results do
    not depend on the order of arrival. NaN equals itself and is the largest; both zeros are equal.
    """

    def __init__(self, kind: str, made: Field) -> None:
        self._kind: Final = kind
        self._made: Final = made

    def create_accumulator(self) -> Any:
        """Return no values."""
        return ()

    def add(self, value: Any, runs: Any) -> Any:
        """Add a value. Raises OverflowError if a sum of integers leaves BIGINT."""
        key = _order_of(value)
        for run in runs:
            at = bisect_left(run, key, key=_order_of)
            if at < len(run) and _order_of(run[at]) == key:
                return runs
        kept, new = list(runs), (value,)
        while kept and len(kept[-1]) <= len(new):
            new = tuple(sorted((*kept.pop(), *new), key=_order_of))
        return self._checked((*kept, new))

    def merge(self, a: Any, b: Any) -> Any:
        """Return the values of both windows."""
        both = {_order_of(value): value for run in (*b, *a) for value in run}
        return self._checked((tuple(both[key] for key in sorted(both)),)) if both else ()

    def get_result(self, runs: Any) -> Any:
        """Return the count; or the sum or mean, null without a value."""
        count = sum(map(len, runs))
        if self._kind == "count":
            return count
        if not count:
            return None
        # Sums of doubles depend on their order.
        total = sum(sorted((value for run in runs for value in run), key=_order_of))
        if self._kind == "sum":
            return total
        kind = self._made.arrow_type
        return decimal_mean(total, count, kind.scale) if pa.types.is_decimal(kind) else total / count

    def _checked(self, runs: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
        if self._kind == "sum" and pa.types.is_integer(self._made.arrow_type):
            most = sum(len(run) * max(abs(run[0]), abs(run[-1])) for run in runs)
            if most > _LARGEST and abs(sum(map(sum, runs))) > _LARGEST:
                raise OverflowError(
                    "the sum of different values is beyond BIGINT; CAST it to DOUBLE or DECIMAL"
                )
        return runs


def _order_of(value: Any) -> Any:
    if isinstance(value, float):
        # NaN is not equal to itself, and would be nowhere in the order.
        return (1, 0.0) if value != value else (0, value)
    return value.value if isinstance(value, enum.Enum) else value


def distinct_values(kind: str, argument: Field, made: Field) -> DistinctValues:
    """Return the aggregate of different values of a field: `count`, `sum` or `avg`."""
    values: Any = argument.python_type

    def create_accumulator(self: DistinctValues) -> Any:
        return DistinctValues.create_accumulator(self)

    # The type of accumulators is an annotation, as with functions of users.
    create_accumulator.__annotations__["return"] = tuple[tuple[values, ...], ...]
    function: DistinctValues = type(
        "DistinctValues", (DistinctValues,), {"create_accumulator": create_accumulator}
    )(kind, made)
    return function


def decimal_mean(total: decimal.Decimal, count: int, scale: int) -> decimal.Decimal:
    """Divide exactly, rounding half away from zero."""
    with decimal.localcontext(prec=76, rounding=decimal.ROUND_HALF_UP):
        whole, rest = divmod(abs(total).scaleb(scale).to_integral_exact(), count)
        rounded = whole + (2 * rest >= count)
        return rounded.scaleb(-scale).copy_sign(total)
