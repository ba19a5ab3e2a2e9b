"""Grouped streams: the methods of a stream whose records are in groups, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from penstock.base.durations import Duration
from penstock.state.ttl import Ttl
from penstock.streams.described_stream import DescribedStream
from penstock.streams.step_nodes import DescribedStep
from penstock.streams.table_nodes import (
    Group,
    add_deduplication,
    add_group_aggregates,
    add_over,
    add_top,
)
from penstock.tables.aggregate import Aggregate

__all__ = ["GroupedStream"]

StreamT = TypeVar("StreamT")
OverT = TypeVar("OverT")


class GroupedStream(Generic[StreamT, OverT]):
    """A stream whose records are in groups: those with equal fields, or with equal results of expressions.

    Null is a value like others. Without a key, all records are in one group. The methods add a step, whose `step` is
    the stable name of its state.

    >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE, at BIGINT")
    >>> by_customer = orders.group_by("customer")
    """

    def __init__(
        self,
        group: Group,
        make: Callable[[DescribedStream], StreamT],
        make_over: Callable[[DescribedStep], OverT],
    ) -> None:
        self._group = group
        self._make = make
        self._make_over = make_over

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

    def top(
        self,
        step: str,
        count: int,
        *,
        order_by: Sequence[str],
        rank: str | None = None,
        ttl: Ttl | None = None,
    ) -> StreamT:
        """Keep the first rows of each group by an order, and return their changelog.

        Without `rank`, a row is added when it becomes one of the first, and deleted when it no longer is. With it, each
        row has its rank in a field of that name, from 1, and a row that takes over a rank updates the row that had it.
        Rows that are equal in `order_by` are ordered by all their other fields, so the result does not depend on their
        arrival.

        >>> cars = Job("cars").data_stream("cars", schema="town STRING, name STRING, price INT")
        >>> dearest = cars.group_by("town").top("dearest", 3, order_by=["price DESC"], rank="place")
        >>> dearest.record_type.field_names, dearest.changelog_key
        (('town', 'name', 'price', 'place', '_change'), ('town', 'place'))

        Args:
            step: the name of the step.
            count: how many rows.
            order_by: fields, each perhaps with ASC or DESC, and NULLS FIRST or NULLS LAST. By default null is smaller
                than all values.
            rank: the name of the field with the rank; None for rows without it.
            ttl: how long the rows of a group are kept after its last record; without one, forever.

        Raises:
            JobDefinitionError: the groups are not by fields, or an argument is wrong.

        """
        return self._make(add_top(step, self._group, count, order_by, rank, ttl))

    def deduplicate(
        self,
        step: str,
        *,
        keep: Literal["first", "last"] = "first",
        by: Literal["event_time", "arrival"] = "event_time",
        ttl: Ttl | None = None,
    ) -> StreamT:
        """Keep one row of each group: the first or the last one, by event time or by arrival.

        The first one by arrival is final, so the result is an appending stream. Otherwise it is a changelog: a row is
        updated when an earlier one, or a later one, arrives. Of rows of the same event time, the smallest counts as
        first.

        >>> orders = Job("shop").data_stream("orders", schema="id INT, at BIGINT", event_time="at")
        >>> orders.group_by("id").deduplicate("once", by="arrival").is_changelog
        False

        Args:
            step: the name of the step.
            keep: which row.
            by: what orders the rows. The event time must be a field.
            ttl: how long the row of a group is kept after its last record; without one, forever.

        Raises:
            JobDefinitionError: the groups are not by fields, the event time is not a field, or an argument is wrong.

        """
        return self._make(add_deduplication(step, self._group, keep, by, ttl))

    def over(
        self,
        step: str,
        aggregates: Mapping[str, Aggregate],
        *,
        rows: int | None = None,
        range: Duration | None = None,  # noqa: A002  # as in SQL
    ) -> OverT:
        """Emit each row with aggregates over itself and the rows before it in its group, by event time.

        A row waits until the watermark has passed it, so the order of arrival does not matter. It goes out once, so the
        result is an appending stream. A row that comes after the watermark goes to the side output `late`.

        >>> prices = Job("prices").data_stream(
        ...     "prices", schema="name STRING, price DOUBLE, at BIGINT", event_time="at",
        ...     watermarks=Watermarks.bounded("5s"),
        ... )
        >>> smooth = prices.group_by("name").over("smooth", {"mean": Aggregate.avg("price")}, range="1m")
        >>> smooth.record_type.field_names
        ('name', 'price', 'at', 'mean')

        Args:
            step: the name of the step.
            aggregates: the aggregates by the name of their field.
            rows: how many rows before each row.
            range: how long before each row; rows of the same time are included. With neither, all rows up to that time.

        Raises:
            JobDefinitionError: the stream is a changelog or has no watermarks, or an argument is wrong.

        """
        return self._make_over(add_over(step, self._group, aggregates, rows, range))
