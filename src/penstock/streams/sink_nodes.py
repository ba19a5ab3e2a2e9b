"""Sink nodes: adds the places where records leave a job to its graph, and how they take changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from penstock.errors import JobDefinitionError, SchemaError
from penstock.streams.described_stream import DescribedStream
from penstock.streams.graph import SinkNode, check_name
from penstock.streams.origin import protobuf_source
from penstock.tables.changes import row_type
from penstock.tables.group_keys import group_key

__all__ = ["SinkChanges", "add_sink"]

SinkChanges: TypeAlias = Literal["records", "upserts"]


def add_sink(
    stream: DescribedStream,
    name: str,
    protobuf: Any,
    changes: SinkChanges | None,
    key: Sequence[str] | None,
) -> None:
    """Add a sink. Raises JobDefinitionError when it does not take the records of the stream."""
    check_name("sink", name)
    stream.check_port()
    source = protobuf_source(protobuf, None, f"Sink {name!r}") or stream.origin.protobuf
    _check_changes(stream, name, changes, key)
    upsert_key = _upsert_key(stream, name, key) if changes == "upserts" else None
    stream.graph.add(SinkNode(f"sink/{name}", name, stream.port, stream.record_type, source, upsert_key))


def _check_changes(
    stream: DescribedStream, name: str, changes: SinkChanges | None, key: Sequence[str] | None
) -> None:
    if changes not in (None, "records", "upserts"):
        raise JobDefinitionError(f'Sink {name!r}: changes={changes!r} is neither "records" nor "upserts".')
    if key is not None and changes != "upserts":
        raise JobDefinitionError(f'Sink {name!r} has a key, which only changes="upserts" uses. Remove it.')
    if stream.origin.changes is None and changes is not None:
        raise JobDefinitionError(
            f"Sink {name!r}: the stream {stream.name!r} only appends records, so it has no changes. Remove changes=."
        )
    if stream.origin.changes is not None and changes is None:
        raise JobDefinitionError(
            f"Sink {name!r} takes records that stay, but {stream.name!r} is a changelog, which updates and deletes "
            'rows. Add changes="upserts" for the last change of each key, or changes="records" for all, with their '
            "kind."
        )


def _upsert_key(stream: DescribedStream, name: str, key: Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields that identify a row for a sink with upserts."""
    assert stream.origin.changes is not None
    known = stream.origin.changes.key
    if key is None and known is None:
        raise JobDefinitionError(
            f"Sink {name!r} takes upserts, but the fields that identify a row of {stream.name!r} are not known. Name "
            'them: sink_to(..., changes="upserts", key=["id"]).'
        )
    found = tuple(known or ()) if key is None else tuple(key)
    try:
        group_key(row_type(stream.record_type), found)
    except (JobDefinitionError, SchemaError) as e:
        raise JobDefinitionError(f"Sink {name!r}: {e}") from None
    if known is not None and not set(known) <= set(found):
        raise JobDefinitionError(
            f"Sink {name!r} has the key {', '.join(found) or 'of one row'}, but a row of {stream.name!r} is identified "
            f"by {', '.join(known)}: rows would replace each other. Leave key= out."
        )
    return found
