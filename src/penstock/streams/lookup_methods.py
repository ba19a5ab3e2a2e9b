"""Lookup methods: the join of streams, with and without a key, with a dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from penstock.base.durations import Duration
from penstock.expressions.columns import Column
from penstock.state.shared import Setting
from penstock.streams.described_stream import DescribedStream, StepInput
from penstock.streams.join_nodes import JoinOptions
from penstock.streams.lookup_nodes import LookupOptions, add_lookup_join
from penstock.streams.lookup_table import LookupTable
from penstock.streams.table_lookup_nodes import Pairs

__all__ = ["LookupMethods"]

LookedUpT = TypeVar("LookedUpT")


class LookupMethods(Generic[LookedUpT]):
    """The method that looks records up in a dimension. docs/joins.md describes it."""

    def lookup_join(
        self,
        step: str,
        dimension: StepInput | LookupTable,
        *,
        how: Literal["inner", "left"] = "inner",
        on: Pairs | None = None,
        deleted: str | Column | None = None,
        missing: Literal["dead_letter"] | None = None,
        wait: Duration | None = None,
        fields: Sequence[str | Column] | None = None,
        where: str | Column | None = None,
        aliases: tuple[str, str] = ("left", "right"),
        settings: Mapping[str, Setting[Any]] | None = None,
    ) -> LookedUpT:
        """Join each record with the latest record of a dimension, as known when the record is processed.

        `dimension` is a keyed stream, of data or control records, that has the key of this one; or a broadcast control
        stream, of which every task keeps all records; or a table outside, `job.lookup_table(...)`. For the last two
        `on` names the equal fields of both; for a table it may be several such pairs. In a micro-batch the dimension
        comes first. `deleted` is a condition on records of a stream that remove theirs.

        A record without a match is dropped (how="inner"), emitted with nulls (how="left"), or goes to the dead letters
        (missing="dead_letter"): at once, or when it has waited for the duration `wait` by the clock, if keyed. Time is
        that of this stream. The other arguments are those of `interval_join`. Raises JobDefinitionError when something
        does not fit.

        >>> job = Job("rooms")
        >>> readings = job.data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> rooms = job.control_stream("rooms", schema="id STRING, floor INT")
        >>> some = readings.key_by("room").lookup_join("floors", rooms.key_by("id"), wait="30s", how="left")
        >>> known = readings.lookup_join(
        ...     "known-floors", rooms.broadcast(), on=("room", "id"), fields=["left.*", "floor"]
        ... )
        >>> owners = job.lookup_table("owners", schema="id STRING, owner STRING")
        >>> owned = readings.lookup_join("owned", owners, on=("room", "id"), how="left")
        """
        options = JoinOptions(how, fields, where, aliases, settings or {})
        lookup = LookupOptions(on, deleted, missing, wait)
        return self._looked_up(add_lookup_join(step, self._data(), dimension, lookup, options))

    def _data(self) -> StepInput:
        """Return the stream as a step reads it."""
        raise NotImplementedError

    def _looked_up(self, described: DescribedStream) -> LookedUpT:
        """Return the stream of the joined records."""
        raise NotImplementedError
