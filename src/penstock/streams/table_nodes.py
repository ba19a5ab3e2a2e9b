"""Table nodes: adds aggregates of groups, Top-N, deduplication and OVER aggregates to the graph of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ExpressionError, JobDefinitionError, SchemaError
from penstock.expressions.columns import Column
from penstock.expressions.expression import Selection
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.types import Field, RecordType
from penstock.state.ttl import Ttl
from penstock.streams.changelogs import Changes
from penstock.streams.described_stream import DescribedStream, KeyedInput
from penstock.streams.expression_nodes import add_expression, compiled
from penstock.streams.step_nodes import DescribedStep, add_table_step
from penstock.streams.step_validation import check_step
from penstock.tables.aggregate import Aggregate, sql_of
from penstock.tables.bound_aggregates import BoundAggregate, bind_aggregate
from penstock.tables.changes import row_type
from penstock.tables.group_aggregates import group_aggregates
from penstock.tables.group_keys import group_key

__all__ = ["Group", "add_group_aggregates", "group_of"]


@dataclass(frozen=True)
class Group:
    """A stream whose records are in groups, by the results of expressions."""

    stream: DescribedStream
    keys: tuple[str, ...]

    @property
    def is_changelog(self) -> bool:
        """Whether the stream is a changelog."""
        return self.stream.origin.changes is not None


def group_of(stream: DescribedStream, keys: Sequence[str | Column]) -> Group:
    """Return the groups of a stream. Raises JobDefinitionError or ExpressionError if a key does not fit it."""
    stream.check_port()
    if stream.is_control:
        raise JobDefinitionError(f"The stream {stream.name!r} is a control stream, which has no groups.")
    texts = tuple(sql_of(key) for key in keys)
    if texts:
        selection = compiled("select", texts, stream, {}, "The group_by")
        assert isinstance(selection, Selection)
        row = row_type(selection.record_type)
        _grouped_by(row.field_names, selection, f"The stream {stream.name!r}")
    return Group(stream, texts)


def _grouped_by(names: Sequence[str], selection: Selection, who: str) -> None:
    """Raise JobDefinitionError if records cannot be grouped by some fields."""
    try:
        group_key(selection.record_type, names)
    except JobDefinitionError as e:
        raise JobDefinitionError(f"{who}: {e}") from None


class _Projection:
    """The expressions that the input of a step needs, each once, under names of their own."""

    def __init__(self, group: Group, step: str) -> None:
        self._stream = group.stream
        self._who = f"Step {step!r}"
        self._texts: dict[str, str] = {}
        self._given = list(group.keys)
        self._taken: set[str] = set()
        if group.keys:
            selection = compiled("select", group.keys, self._stream, {}, self._who)
            assert isinstance(selection, Selection)
            self.key_names = tuple(row_type(selection.record_type).field_names)
            self._taken = set(selection.record_type.field_names)
        else:
            self.key_names = ()

    def add(self, argument: str | Column, where: str | Column | None = None) -> str:
        """Return the name of an expression, which is null where a condition is not true."""
        text = sql_of(argument)
        # Alone first, so that the position in an error is one in what the user has written.
        compiled("select", [f"{text} AS argument"], self._stream, {}, self._who)
        if where is not None:
            condition = sql_of(where)
            compiled("where", [condition], self._stream, {}, self._who)
            text = f"CASE WHEN ({condition}) THEN ({text}) END"
        if text not in self._texts:
            is_free = text in self._stream.record_type.field_names and text not in self._taken
            name = text if is_free else self._free_name()
            self._taken.add(name)
            self._texts[text] = name
            self._given.append(text if is_free else f"({text}) AS {name}")
        return self._texts[text]

    def _free_name(self) -> str:
        number = len(self._texts) + 1
        while f"argument_{number}" in self._taken:
            number += 1
        return f"argument_{number}"

    def selection(self) -> Selection:
        """Return the selection of all expressions."""
        given = self._given or ["true AS present"]
        selection = compiled("select", given, self._stream, {}, self._who)
        assert isinstance(selection, Selection)
        return selection


def add_group_aggregates(
    step: str, group: Group, aggregates: Mapping[str, Aggregate], ttl: Ttl | None
) -> DescribedStream:
    """Add a step with aggregates of groups, and return the changelog of their results."""
    check_step(step, group.stream, takes_changes=True)
    projection = _Projection(group, step)
    bound = [
        (name, one, _arguments(projection, group, name, one)) for name, one in _checked(step, aggregates)
    ]
    selection = projection.selection()
    found = _bound(step, selection.record_type, bound, retracts=group.is_changelog)
    key = group_key(selection.record_type, projection.key_names)
    try:
        function = group_aggregates(key, found, ttl, retracts=group.is_changelog)
    except (JobDefinitionError, SchemaError) as e:
        raise type(e)(f"Step {step!r}: {e}") from None
    stream = add_expression(group.stream, selection, f"{step}.input")
    described = add_table_step(step, function, KeyedInput(stream, key))
    time = described.origin.time
    if time not in (None, INGESTION_TIME, *projection.key_names):
        # A result may have the name of the field with the event time.
        time = EVENT_TIME
    return _changelog(described, Changes(projection.key_names), time)


def _checked(step: str, aggregates: Any) -> list[tuple[str, Aggregate]]:
    """Return aggregates with their names. Raises JobDefinitionError if they are something else."""
    if not isinstance(aggregates, Mapping) or not aggregates:
        raise JobDefinitionError(
            f'Step {step!r} needs aggregates by name, such as {{"total": ps.Aggregate.sum("amount")}}.'
        )
    for name, one in aggregates.items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise JobDefinitionError(
                f"Step {step!r}: {name!r} is not a name of a field, which is as in Python and starts with a letter."
            )
        if not isinstance(one, Aggregate):
            raise JobDefinitionError(
                f'Step {step!r}: the aggregate {name!r} is {one!r}; give one such as ps.Aggregate.sum("amount").'
            )
    return list(aggregates.items())


def _arguments(
    projection: _Projection, group: Group, name: str, aggregate: Aggregate
) -> tuple[str | None, str | None]:
    """Return the names of the fields with an aggregate's argument and with what orders it."""
    if name in projection.key_names:
        raise JobDefinitionError(
            f"The aggregate {name!r} has the name of a field of the group; choose another."
        )
    if aggregate.argument is None and aggregate.where is None:
        return None, None
    argument = "true" if aggregate.argument is None else aggregate.argument
    order = aggregate.order_by
    time = group.stream.origin.time
    if aggregate.function in ("first", "last") and order is None and not group.is_changelog:
        order = time if time in group.stream.record_type.field_names else None
    return (
        projection.add(argument, aggregate.where),
        None if order is None else projection.add(order),
    )


def _bound(
    step: str,
    records: RecordType,
    given: Sequence[tuple[str, Aggregate, tuple[str | None, str | None]]],
    *,
    retracts: bool,
) -> list[BoundAggregate]:
    def field(name: str | None) -> Field | None:
        return None if name is None else records.field(name)

    try:
        return [
            bind_aggregate(name, one, field(argument), field(order), retracts=retracts)
            for name, one, (argument, order) in given
        ]
    except (JobDefinitionError, ExpressionError) as e:
        raise type(e)(f"Step {step!r}: {e}") from None


def _changelog(described: DescribedStep, changes: Changes, time: str | None) -> DescribedStream:
    origin = dataclasses.replace(described.origin, changes=changes, time=time)
    return DescribedStream(described.graph, described.port, described.record_type, origin)
