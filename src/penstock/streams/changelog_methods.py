"""Changelog methods: a stream as a table that changes, and its groups."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.expressions.columns import Column
from penstock.streams.changelog_nodes import add_changelog, add_records
from penstock.streams.described_stream import DescribedStream
from penstock.streams.grouped_stream import GroupedStream
from penstock.streams.step_nodes import DescribedStep
from penstock.streams.table_nodes import group_of

__all__ = ["ChangelogMethods"]

StreamT = TypeVar("StreamT")
OverT = TypeVar("OverT")


class ChangelogMethods(Generic[StreamT, OverT]):
    """The methods of streams as tables."""

    @property
    def is_changelog(self) -> bool:
        """Whether the records are changes of a table, of the kind in their field `_change`."""
        return self._stream().origin.changes is not None

    @property
    def changelog_key(self) -> tuple[str, ...] | None:
        """The fields that identify a row of a changelog's table; None if they are not known."""
        changes = self._stream().origin.changes
        return None if changes is None else changes.key

    def group_by(self, *keys: str | Column) -> GroupedStream[StreamT, OverT]:
        """Put records into groups, by fields or by expressions such as `"upper(name) AS name"`; see `GroupedStream`.

        >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE")
        >>> orders.group_by("customer").aggregate("totals", {"spent": Aggregate.sum("amount")}).is_changelog
        True
        """
        return GroupedStream(group_of(self._stream(), keys), self._stream_of, self._over_of)

    def as_changelog(self) -> StreamT:
        """Return an appending stream as a changelog, to which each record adds a row.

        >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE")
        >>> orders.as_changelog().record_type.field_names
        ('customer', 'amount', '_change')
        """
        return self._stream_of(add_changelog(self._stream()))

    def as_records(self, field: str = "change") -> StreamT:
        """Return each change of a changelog as a record, with its kind (`+I`, `-U`, `+U` or `-D`) in a field.

        >>> orders = Job("shop").data_stream("orders", schema="customer STRING, amount DOUBLE")
        >>> totals = orders.group_by("customer").aggregate("totals", {"orders": Aggregate.count()})
        >>> totals.as_records().record_type.field_names
        ('customer', 'orders', 'change')
        """
        return self._stream_of(add_records(self._stream(), field))

    def _stream(self) -> DescribedStream:
        """Return the stream."""
        raise NotImplementedError

    def _stream_of(self, described: DescribedStream) -> StreamT:
        """Return a stream of other records."""
        raise NotImplementedError

    def _over_of(self, step: DescribedStep) -> OverT:
        """Return the stream of a step with OVER aggregates."""
        raise NotImplementedError
