"""Distinct values: exact aggregates of the different values of a field in each window, kept sorted."""

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
    """The number, the sum or the mean of the different values that a window has met.

    The accumulator is the list of these values, in order, so results do not depend on the order of arrival. NaN equals
    itself and is the largest; both zeros are equal.
    """

    def __init__(self, kind: str, made: Field) -> None:
        self._kind: Final = kind
        self._made: Final = made

    def create_accumulator(self) -> Any:
        """Return no values."""
        return []

    def add(self, value: Any, values: Any) -> Any:
        """Add a value. Raises OverflowError if a sum of integers leaves BIGINT."""
        key = _order_of(value)
        at = bisect_left(values, key, key=_order_of)
        if at < len(values) and _order_of(values[at]) == key:
            return values
        values.insert(at, value)
        self._check(values)
        return values

    def merge(self, a: Any, b: Any) -> Any:
        """Return the values of both windows."""
        for value in b:
            a = self.add(value, a)
        return a

    def get_result(self, values: Any) -> Any:
        """Return the count; or the sum or mean, null without a value."""
        if self._kind == "count":
            return len(values)
        if not values:
            return None
        total = sum(values)
        if self._kind == "sum":
            return total
        kind = self._made.arrow_type
        return (
            decimal_mean(total, len(values), kind.scale) if pa.types.is_decimal(kind) else total / len(values)
        )

    def _check(self, values: list[Any]) -> None:
        if self._kind == "sum" and pa.types.is_integer(self._made.arrow_type) and abs(sum(values)) > _LARGEST:
            raise OverflowError("the sum of different values is beyond BIGINT; CAST it to DOUBLE or DECIMAL")


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
    create_accumulator.__annotations__["return"] = list[values]
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
