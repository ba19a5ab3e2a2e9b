"""Aggregates: the descriptions of the aggregates of a group by users and planners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.errors import JobDefinitionError
from penstock.expressions.columns import Column
from penstock.windows.distinct_counts import DEFAULT_ACCURACY

__all__ = ["Aggregate", "Expression", "sql_of"]

Expression: TypeAlias = str | Column
Function: TypeAlias = Literal["count", "sum", "avg", "min", "max", "first", "last", "approx_count_distinct"]

_ORDERED: Final = ("first", "last")


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of the rows of a group, for `group_by(...).aggregate` and `over`. Create one with its methods.

    An argument is an expression in SQL or a column, such as `"amount * 2"`. Rows in which it is null do not count.
    `where` is a condition: other rows do not count, as with `FILTER` in SQL. With `distinct` equal values count once.

    >>> totals = {
    ...     "orders": Aggregate.count(),
    ...     "paid": Aggregate.sum("amount", where="status = 'paid'"),
    ...     "customers": Aggregate.count("customer", distinct=True),
    ... }
    """

    function: Function
    argument: Expression | None = None
    where: Expression | None = None
    distinct: bool = False
    order_by: Expression | None = None
    accuracy: float = DEFAULT_ACCURACY

    def __post_init__(self) -> None:
        if self.argument is None and (self.function != "count" or self.distinct):
            raise JobDefinitionError(f"The aggregate {self.function} needs an argument, such as a field.")
        if self.order_by is not None and self.function not in _ORDERED:
            raise JobDefinitionError(f"The aggregate {self.function} has no order; only first and last have.")

    @classmethod
    def count(
        cls, argument: Expression | None = None, *, where: Expression | None = None, distinct: bool = False
    ) -> Aggregate:
        """Count the rows, or those in which the argument is not null: BIGINT."""
        return cls("count", argument, where, distinct)

    @classmethod
    def sum(
        cls, argument: Expression, *, where: Expression | None = None, distinct: bool = False
    ) -> Aggregate:
        """Sum numbers: BIGINT for integers, DOUBLE, or DECIMAL with ten more digits. Null without a value."""
        return cls("sum", argument, where, distinct)

    @classmethod
    def avg(
        cls, argument: Expression, *, where: Expression | None = None, distinct: bool = False
    ) -> Aggregate:
        """Average numbers: DOUBLE, or DECIMAL with four more digits after the decimal point. Null without a value."""
        return cls("avg", argument, where, distinct)

    @classmethod
    def min(cls, argument: Expression, *, where: Expression | None = None) -> Aggregate:
        """Return the smallest value, of any type with an order."""
        return cls("min", argument, where)

    @classmethod
    def max(cls, argument: Expression, *, where: Expression | None = None) -> Aggregate:
        """Return the largest value, of any type with an order. NaN is larger than all others."""
        return cls("max", argument, where)

    @classmethod
    def first(
        cls, argument: Expression, *, where: Expression | None = None, order_by: Expression | None = None
    ) -> Aggregate:
        """Return the first value that is not null: by `order_by`, else by event time, else by arrival."""
        return cls("first", argument, where, order_by=order_by)

    @classmethod
    def last(
        cls, argument: Expression, *, where: Expression | None = None, order_by: Expression | None = None
    ) -> Aggregate:
        """Return the last value that is not null, like `first`."""
        return cls("last", argument, where, order_by=order_by)

    @classmethod
    def approx_count_distinct(
        cls, argument: Expression, *, where: Expression | None = None, accuracy: float = DEFAULT_ACCURACY
    ) -> Aggregate:
        """Estimate the number of different values, with a relative standard error. Not for changelogs."""
        return cls("approx_count_distinct", argument, where, accuracy=accuracy)


def sql_of(expression: Expression) -> str:
    """Return an expression as SQL text."""
    return expression.sql if isinstance(expression, Column) else expression
