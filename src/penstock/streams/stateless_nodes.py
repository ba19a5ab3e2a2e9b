"""Stateless nodes: adds map, filter, flat_map, with_event_time and union to the graph of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.functions import read_result_type, result_record_type
from penstock.streams.changelogs import Changes, refuse_changelog
from penstock.streams.described_stream import DescribedStream
from penstock.streams.graph import (
    EventTimeNode,
    Port,
    TransformKind,
    TransformNode,
    UnionNode,
    described_type,
    is_given,
)
from penstock.streams.origin import Origin, is_time, protobuf_source
from penstock.streams.stream_validation import check_transform, check_union, counting_time

__all__ = ["add_event_time", "add_transform", "add_union"]

_EXPRESSIONS: Final = (
    "Use select(...), which passes each change on; or call as_records() to process each change as a record."
)


def add_transform(
    stream: DescribedStream, kind: TransformKind, function: Callable[[Any], Any], output: Any, name: str
) -> DescribedStream:
    """Add a transform and return the stream of its results. Raises JobDefinitionError or SchemaError."""
    stream.check_port()
    if kind != "filter":
        refuse_changelog(stream.origin.changes, stream.name, kind, _EXPRESSIONS)
    check_transform(kind, function)
    name = name or f"{kind}-{_next_number(stream, TransformNode)}"
    who = f"The {kind} {name!r}"
    schema = output if output is not None else read_result_type(function)
    if schema is type(None):
        raise JobDefinitionError(
            f"{who} is annotated to return None, so it would emit nothing. Annotate the type that it returns."
        )
    # Without a schema, this raises an error that explains how to declare one.
    result = described_type(schema, who) if is_given(schema) else result_record_type(function, who)
    assert result is not None
    protobuf = stream.origin.protobuf if kind == "filter" else protobuf_source(None, schema, who)
    origin = stream.origin.of(result, protobuf)
    time = stream.origin.time if origin.time == EVENT_TIME != stream.origin.time else None
    node = TransformNode(
        f"transform/{name}", name, kind, function, stream.port, stream.record_type, result, time
    )
    stream.graph.add(node)
    return DescribedStream(stream.graph, Port(node.id), result, origin)


def add_event_time(stream: DescribedStream, field: str) -> DescribedStream:
    """Return the stream with the event time of its records in `field`. Raises JobDefinitionError or SchemaError."""
    stream.check_port()
    if stream.is_control:
        raise JobDefinitionError(
            f"The stream {stream.name!r} is a control stream, whose records have no event time. Declare the field with "
            "the time from which they are effective: job.control_stream(..., effective_at=...)."
        )
    try:
        kind = stream.record_type.field(field).arrow_type
    except SchemaError as e:
        raise SchemaError(f"The stream {stream.name!r}: {e}") from e
    if not is_time(kind):
        raise SchemaError(
            f"The stream {stream.name!r}: the field {field!r} is {kind}, and cannot be a time; use a timestamp or an "
            "integer of milliseconds."
        )
    if not stream.has_watermarks:
        raise JobDefinitionError(
            f"The stream {stream.name!r} has no watermarks to go with its event time. Declare them where records "
            'enter the job: job.data_stream(..., event_time="at", watermarks=ps.Watermarks.bounded("5s")).'
        )
    number = _next_number(stream, EventTimeNode)
    node = EventTimeNode(f"event-time/{number}", stream.port, stream.record_type, field)
    stream.graph.add(node)
    origin = dataclasses.replace(stream.origin, time=field)
    return DescribedStream(stream.graph, Port(node.id), stream.record_type, origin)


def add_union(streams: Sequence[DescribedStream], name: str) -> DescribedStream:
    """Return the union of several streams as one stream. Raises JobDefinitionError when they do not fit together."""
    first = streams[0]
    name = name or f"union-{_next_number(first, UnionNode)}"
    check_union(streams)
    node = UnionNode(f"union/{name}", name, tuple(stream.port for stream in streams))
    first.graph.add(node)
    same = all(stream.origin.protobuf == first.origin.protobuf for stream in streams)
    origin = Origin(
        name,
        is_control=False,
        protobuf=first.origin.protobuf if same else None,
        time=counting_time(first),
        version=first.origin.version,
        # Rows of two tables may have the same key.
        changes=None if first.origin.changes is None else Changes(),
    )
    return DescribedStream(first.graph, Port(node.id), first.record_type, origin)


def _next_number(stream: DescribedStream, kind: type) -> int:
    """Return the number of the next node of a kind, to give it a unique name."""
    return sum(isinstance(node, kind) for node in stream.graph.nodes.values()) + 1
