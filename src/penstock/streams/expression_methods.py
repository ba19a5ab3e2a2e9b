"""Expression methods: where and select, of streams with and without a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from penstock.expressions.columns import Column
from penstock.state.shared import Setting
from penstock.streams.described_stream import DescribedStream, StepInput
from penstock.streams.expression_nodes import add_select, add_where

__all__ = ["ExpressionMethods"]

SameT = TypeVar("SameT")
SelectedT = TypeVar("SelectedT")


class ExpressionMethods(Generic[SameT, SelectedT]):
    """The methods that take expressions: SQL text, or columns such as `ps.col("celsius") > 30`."""

    def where(
        self, condition: str | Column, *, settings: Mapping[str, Setting[Any]] | None = None, name: str = ""
    ) -> SameT:
        """Keep only the records for which a condition in SQL is true, as in `WHERE`. It is evaluated on columns.

        docs/tables.md describes expressions. `settings` declares the parameters that the condition has, such as
        `${limit}`: commands change them while the job runs, and a step of the given `name` evaluates it. A record for
        which it fails, such as for an overflow, goes to the dead letters. Raises ExpressionError, with the position,
        if the condition cannot be read or does not fit the records.

        >>> readings = Job("rooms").data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> warm = readings.where("celsius > 30 and room in ('a', 'b')")
        >>> hot = readings.where(
        ...     "celsius > ${limit}", settings={"limit": Setting(float, 40.0)}, name="hot-readings"
        ... )
        """
        return self._unchanged(add_where(self._data(), condition, settings, name))

    def select(
        self, *fields: str | Column, settings: Mapping[str, Setting[Any]] | None = None, name: str = ""
    ) -> SelectedT:
        """Make new records of the results of expressions in SQL, as in `SELECT`; see `where`.

        A field keeps its name and type; another expression is named with `AS`. `*` is all fields.

        >>> readings = Job("rooms").data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> readings.select("room", "celsius * 1.8 + 32 AS fahrenheit").record_type
        Record(room: string, fahrenheit: double)
        """
        return self._selected(add_select(self._data(), fields, settings, name))

    def _data(self) -> StepInput:
        """Return the stream as a step reads it."""
        raise NotImplementedError

    def _unchanged(self, described: DescribedStream) -> SameT:
        """Return a stream of the same records."""
        raise NotImplementedError

    def _selected(self, described: DescribedStream) -> SelectedT:
        """Return a stream of selected records."""
        raise NotImplementedError
