"""Changelog nodes: turns appending streams into changelogs and back, in the graph of a job."""

from __future__ import annotations

import dataclasses

from penstock.errors import JobDefinitionError, SchemaError
from penstock.streams.changelogs import Changes
from penstock.streams.described_stream import DescribedStream
from penstock.streams.expression_nodes import add_expression, compile_expression
from penstock.streams.graph import ChangelogNode, Port
from penstock.tables.changes import CHANGE, row_type
from penstock.tables.decoded_changes import KindField

__all__ = ["add_changelog", "add_records"]


def add_changelog(
    stream: DescribedStream, kind: str | None = None, key: tuple[str, ...] | None = None
) -> DescribedStream:
    """Return a stream as a changelog. `kind` is the field with the kind of each change; without it, all are insertions.

    Raises JobDefinitionError or SchemaError if it cannot be one.
    """
    stream.check_port()
    if stream.is_control or stream.origin.changes is not None:
        what = "a control stream" if stream.is_control else "a changelog already"
        raise JobDefinitionError(f"The stream {stream.name!r} is {what}, and cannot become a changelog.")
    try:
        fields = KindField.of(stream.record_type, kind)
    except SchemaError as e:
        raise SchemaError(f"The stream {stream.name!r}: {e}") from None
    number = sum(isinstance(node, ChangelogNode) for node in stream.graph.nodes.values()) + 1
    node = ChangelogNode(f"changelog/{number}", stream.port, stream.record_type, fields.output, fields)
    stream.graph.add(node)
    origin = dataclasses.replace(stream.origin.of(fields.output, None), changes=Changes(key))
    return DescribedStream(stream.graph, Port(node.id), fields.output, origin)


def add_records(stream: DescribedStream, field: str) -> DescribedStream:
    """Return the changes of a changelog as records. Raises JobDefinitionError for other streams, and a taken field."""
    if stream.origin.changes is None:
        raise JobDefinitionError(f"The stream {stream.name!r} is not a changelog: leave out as_records().")
    names = row_type(stream.record_type).field_names
    if field in names:
        raise JobDefinitionError(
            f"The stream {stream.name!r} has a field {field!r}; name another one for the kind of a change: "
            'as_records(field="kind_of_change").'
        )
    who = f"as_records of the stream {stream.name!r}"
    appending = DescribedStream(
        stream.graph, stream.port, stream.record_type, dataclasses.replace(stream.origin, changes=None)
    )
    selection = compile_expression("select", [*names, f"{CHANGE} AS {field}"], appending, {}, who)
    number = sum(node.id.startswith("transform/records-") for node in stream.graph.nodes.values()) + 1
    return add_expression(appending, selection, f"records-{number}")
