"""Grouped streams: the methods of a stream whose records are in groups, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from penstock.state.ttl import Ttl
from penstock.streams.described_stream import DescribedStream
from penstock.streams.table_nodes import Group, add_group_aggregates
from penstock.tables.aggregate import Aggregate

__all__ = ["GroupedStream"]

StreamT = TypeVar("StreamT")


class GroupedStream(Generic[StreamT]):
    """A stream whose records are in groups: those with equal fields, or with equal results of expressions.

    Null is a value like others. Without a key, all records are in one group. The methods add a step, whose `step` is
    the stable name of its state.

    >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE, at BIGINT")
    >>> by_customer = orders.group_by("customer")
    """

    def __init__(self, group: Group, make: Callable[[DescribedStream], StreamT]) -> None:
        self._group = group
        self._make = make

    def aggregate(self, step: str, aggregates: Mapping[str, Aggregate], *, ttl: Ttl | None = None) -> StreamT:
        """Aggregate each group, and return the changelog of the results: the fields of the group, then the aggregates.

        After each micro-batch, a group whose result differs emits its change. The stream may be a changelog: then rows
        leave their groups too, and a group without rows is deleted.

        >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE")
        >>> totals = orders.group_by("customer").aggregate(
        ...     "totals", {"orders": Aggregate.count(), "spent": Aggregate.sum("amount", where="amount > 0")}
        ... )
        >>> totals.record_type.field_names, totals.changelog_key
        (('customer', 'orders', 'spent', '_change'), ('customer',))

        Args:
            step: the name of the step.
            aggregates: the aggregates by the name of their field.
            ttl: how long the state of a group is kept after its last record; without one, forever. An expired group
                emits nothing, and begins anew with its next record.

        Raises:
            JobDefinitionError: an aggregate does not fit its argument, or the names are wrong.
            ExpressionError: an expression cannot be read, or does not fit the records.

        """
        return self._make(add_group_aggregates(step, self._group, aggregates, ttl))
