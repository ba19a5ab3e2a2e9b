"""Table nodes: adds aggregates of groups, Top-N, deduplication and OVER aggregates to the graph of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.base.durations import Duration, milliseconds
from penstock.errors import ExpressionError, JobDefinitionError, SchemaError
from penstock.expressions.columns import Column
from penstock.expressions.expression import Selection
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.types import Field, RecordType
from penstock.state.ttl import Ttl
from penstock.streams.changelogs import Changes
from penstock.streams.described_stream import DescribedStream, KeyedInput
from penstock.streams.expression_nodes import add_expression, compile_expression
from penstock.streams.step_nodes import DescribedStep, add_table_step
from penstock.streams.step_validation import check_step
from penstock.tables.aggregate import Aggregate, sql_of
from penstock.tables.bound_aggregates import BoundAggregate, bind_aggregate
from penstock.tables.changes import row_type
from penstock.tables.group_aggregates import group_aggregates
from penstock.tables.group_keys import GroupKey, group_key
from penstock.tables.latest_rows import first_rows, latest_rows
from penstock.tables.ordering import OrderBy, orders_of
from penstock.tables.over_rows import Frame, over_rows
from penstock.tables.table_step import TableStep
from penstock.tables.top_rows import top_rows

__all__ = [
    "Group",
    "add_deduplication",
    "add_group_aggregates",
    "add_over",
    "add_top",
    "add_upserts",
    "group_of",
]


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
        selection = compile_expression("select", texts, stream, {}, "The group_by")
        assert isinstance(selection, Selection)
        row = row_type(selection.record_type)
        _group_by(row.field_names, selection, f"The stream {stream.name!r}")
    return Group(stream, texts)


def _group_by(names: Sequence[str], selection: Selection, who: str) -> None:
    """Raise JobDefinitionError if records cannot be grouped by some fields."""
    try:
        group_key(selection.record_type, names)
    except JobDefinitionError as e:
        raise JobDefinitionError(f"{who}: {e}") from None


class _Projection:
    """The expressions that the input of a step needs, each once, under generated names."""

    def __init__(self, group: Group, step: str, *, whole: bool = False) -> None:
        self._stream = group.stream
        self._who = f"Step {step!r}"
        self._texts: dict[str, str] = {}
        self._given = list(group.keys)
        self._taken: set[str] = set()
        self.key_names: tuple[str, ...] = ()
        if whole:
            names = self._stream.record_type.field_names
            self._given, self._taken = ["*"], set(names)
            self._texts = {name: name for name in names}
        elif group.keys:
            selection = compile_expression("select", group.keys, self._stream, {}, self._who)
            assert isinstance(selection, Selection)
            self.key_names = tuple(row_type(selection.record_type).field_names)
            self._taken = set(selection.record_type.field_names)

    def add(self, argument: str | Column, where: str | Column | None = None) -> str:
        """Return the name of an expression, which is null where a condition is not true."""
        text = sql_of(argument)
        # Alone first, so that an error gives the position in the text that the user has written.
        compile_expression("select", [f"{text} AS argument"], self._stream, {}, self._who)
        if where is not None:
            condition = sql_of(where)
            compile_expression("where", [condition], self._stream, {}, self._who)
            text = f"CASE WHEN ({condition}) THEN ({text}) END"
        if text not in self._texts:
            is_free = text in self._stream.record_type.field_names and text not in self._taken
            name = text if is_free else self._free_name()
            self._taken.add(name)
            self._texts[text] = name
            self._given.append(text if is_free else f"({text}) AS {name}")
        return self._texts[text]

    def _free_name(self) -> str:
        number = 1
        while f"argument_{number}" in self._taken:
            number += 1
        return f"argument_{number}"

    def selection(self) -> Selection:
        """Return the selection of all expressions."""
        given = self._given or ["true AS present"]
        selection = compile_expression("select", given, self._stream, {}, self._who)
        assert isinstance(selection, Selection)
        return selection


def add_group_aggregates(
    step: str, group: Group, aggregates: Mapping[str, Aggregate], ttl: Ttl | None
) -> DescribedStream:
    """Add a step that aggregates groups, and return the changelog of the results."""
    check_step(step, group.stream, takes_changes=True)
    projection = _Projection(group, step)
    bound = [(name, one, _arguments(projection, group, name, one)) for name, one in _check(step, aggregates)]
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


def add_top(
    step: str, group: Group, count: int, order_by: Sequence[str], rank: str | None, ttl: Ttl | None
) -> DescribedStream:
    """Add a step that keeps the first rows of each group, and return their changelog."""
    key, rows = _whole_rows(step, group)
    who = f"Step {step!r}"
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise JobDefinitionError(f"{who} keeps {count!r} rows of each group; give an integer, at least 1.")
    if rank is not None and (not rank.isidentifier() or rank.startswith("_") or rank in rows.field_names):
        raise JobDefinitionError(f"{who}: {rank!r} cannot be the field with the rank; choose a new name.")
    try:
        orders = orders_of(order_by, rows, who)
        function = top_rows(rows, count, orders, ttl, rank=rank, retracts=group.is_changelog)
    except SchemaError as e:
        raise SchemaError(f"{who}: {e}") from None
    known = group.stream.origin.changes
    changes = (
        Changes((*key.fields, rank)) if rank is not None else Changes(None if known is None else known.key)
    )
    return _add_rows(step, group, key, function, changes)


def add_deduplication(step: str, group: Group, keep: str, by: str, ttl: Ttl | None) -> DescribedStream:
    """Add a step that keeps one row of each group, and return its stream: appending if the first to arrive stays."""
    key, rows = _whole_rows(step, group)
    who = f"Step {step!r}"
    if keep not in ("first", "last") or by not in ("event_time", "arrival"):
        raise JobDefinitionError(
            f'{who} has keep={keep!r} and by={by!r}; keep is "first" or "last", by is "event_time" or "arrival".'
        )
    if by == "arrival":
        if group.is_changelog:
            raise JobDefinitionError(
                f"{who}: the rows of the changelog {group.stream.name!r} have no order of arrival. Use "
                'by="event_time", or top(..., order_by=[...]).'
            )
        if keep == "first":
            return _add_rows(step, group, key, first_rows(rows, ttl), None)
        return _add_rows(step, group, key, latest_rows(rows, ttl), Changes(key.fields))
    order = OrderBy(_time_field(step, group.stream, rows), keep == "last", keep == "first")
    function = top_rows(rows, 1, [order], ttl, replaces=True, retracts=group.is_changelog)
    return _add_rows(step, group, key, function, Changes(key.fields))


def add_upserts(step: str, stream: DescribedStream, names: Sequence[str]) -> DescribedStream:
    """Add a step that turns upserts into a changelog. The stream has the kind of each change; `names` are its key."""
    group = Group(stream, tuple(names))
    key, rows = _whole_rows(step, group)
    return _add_rows(step, group, key, latest_rows(rows, None), Changes(key.fields))


def add_over(
    step: str, group: Group, aggregates: Mapping[str, Aggregate], rows: int | None, range_: Duration | None
) -> DescribedStep:
    """Add a step that emits each row with aggregates of those before it."""
    stream = group.stream
    check_step(step, stream)
    who = f"Step {step!r}"
    key, kind = _whole_rows(step, group)
    time = _time_field(step, stream, kind)
    if not stream.has_watermarks:
        raise JobDefinitionError(
            f"{who} waits for the watermark, but the stream {stream.name!r} has none. Declare it: "
            'job.data_stream(..., event_time="at", watermarks=ps.Watermarks.bounded("5s")).'
        )
    frame = _frame(who, rows, range_)
    projection = _Projection(group, step, whole=True)
    arguments = [
        (name, one, _arguments(projection, group, name, one)) for name, one in _check(step, aggregates)
    ]
    taken = [name for name in aggregates if name in kind.field_names]
    if taken:
        raise JobDefinitionError(
            f"{who}: the aggregate {taken[0]!r} has the name of a field; choose another."
        )
    selection = projection.selection()
    found = _bound(step, selection.record_type, arguments, retracts=False)
    function = over_rows(kind, selection.record_type, time, found, frame)
    selected = add_expression(stream, selection, f"{step}.input")
    key = group_key(selection.record_type, key.fields)
    return add_table_step(step, function, KeyedInput(selected, key))


def _frame(who: str, rows: int | None, range_: Duration | None) -> Frame:
    if rows is not None and range_ is not None:
        raise JobDefinitionError(f"{who} has both rows and range; a frame is bounded by one of them.")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 0):
        raise JobDefinitionError(
            f"{who} has rows={rows!r}; give the number of rows before each row, at least 0."
        )
    return Frame(rows, None if range_ is None else milliseconds(range_, f"The range of {who}"))


def _whole_rows(step: str, group: Group) -> tuple[GroupKey, RecordType]:
    """Return the key of groups by fields, and the type of their rows."""
    stream = group.stream
    check_step(step, stream, takes_changes=True)
    rows = row_type(stream.record_type)
    for name in group.keys:
        if name not in rows.field_names:
            raise JobDefinitionError(
                f"Step {step!r} emits whole rows, whose groups are fields; select {name!r} as a field first: "
                f'{stream.name}.select("*", "... AS name").group_by("name").'
            )
    return group_key(stream.record_type, group.keys), rows


def _time_field(step: str, stream: DescribedStream, rows: RecordType) -> str:
    """Return the field with the event time of rows. Raises JobDefinitionError if no field has it."""
    time = stream.origin.time
    if time is None or time not in rows.field_names:
        raise JobDefinitionError(
            f"Step {step!r} needs the event time of its rows in a field, but {stream.name!r} has no "
            f"{'event time' if time is None else 'field with it'}. Declare it (job.data_stream(..., "
            'event_time="at")), or name a field with with_event_time.'
        )
    return time


def _add_rows(
    step: str, group: Group, key: GroupKey, function: TableStep, changes: Changes | None
) -> DescribedStream:
    described = add_table_step(step, function, KeyedInput(group.stream, key))
    return _changelog(described, changes, described.origin.time)


def _check(step: str, aggregates: Any) -> list[tuple[str, Aggregate]]:
    """Return aggregates with their names. Raises JobDefinitionError for any other value."""
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
    """Return the names of the fields that hold an aggregate's argument and its order."""
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


def _changelog(described: DescribedStep, changes: Changes | None, time: str | None) -> DescribedStream:
    origin = dataclasses.replace(described.origin, changes=changes, time=time)
    return DescribedStream(described.graph, described.port, described.record_type, origin)
