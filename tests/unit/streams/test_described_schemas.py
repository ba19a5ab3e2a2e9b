"""Schemas and keys of streams: invalid ones are refused with the stream's name."""

from __future__ import annotations

from typing import Any

import pytest
from described_streams import PENSTOCKS_FIELD, SCHEMA, Measured, Streams, gives_int, refused

from penstock.errors import SchemaError


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        (5, ("5 is not a schema", "dataclass")),
        ("a INTEGR", ("'integr'", "Known types")),
        ("a INT, b INT, a INT", ("the field 'a' twice", "rename one")),
        (PENSTOCKS_FIELD, ("'__offset'", "rename it")),
    ],
)
def test_a_stream_has_a_schema_of_fields_with_types(
    streams: Streams, schema: Any, parts: tuple[str, ...]
) -> None:
    """Names must be unique, and not reserved by penstock."""
    with refused("Stream 'x'", *parts):
        streams.job.data_stream("x", schema=schema)


def test_a_stream_has_a_protobuf_message_class(streams: Streams) -> None:
    """The name of a class is refused."""
    with refused("Stream 'x'", "'Reading' is not a message class"):
        streams.job.data_stream("x", schema=SCHEMA, protobuf="Reading")


def test_a_sink_has_a_protobuf_message_class(streams: Streams) -> None:
    """Other classes are refused."""
    with refused("Sink 'out'", "Measured", "is not a message class", "protobuf compiler"):
        streams.data.sink_to("out", protobuf=Measured)


def test_errors_about_schemas_keep_their_class(streams: Streams) -> None:
    """An error raised again with the stream's name is still a SchemaError."""
    with pytest.raises(SchemaError):
        streams.data.key_by("value")
    with pytest.raises(SchemaError):
        streams.job.data_stream("x", schema=5)


def gives_float(record: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ([], ("a field, several fields, or a function",)),
        (["idd"], ("no field 'idd'", "id, name, value")),
        (["value"], ("double cannot be a key",)),
        (["id", "value"], ("value: double cannot",)),
        ([gives_float], ("double cannot",)),
        ([lambda record: record.id], ("result type is not known", "key_type=int")),
        ([gives_int, gives_int], ("one function",)),
    ],
)
def test_a_stream_is_keyed_by_what_can_be_told_apart(
    streams: Streams, key: list[Any], parts: tuple[str, ...]
) -> None:
    """A key is existing fields, or one function with a declared type; doubles are refused, as their equality
    is unreliable.
    """
    with refused("'readings'", *parts):
        streams.data.key_by(*key)


def test_the_schema_has_the_type_of_a_field_already(streams: Streams) -> None:
    """So a type given for the key is refused."""
    with refused("'readings'", "keyed by fields", "remove key_type"):
        streams.data.key_by("id", key_type=str)
