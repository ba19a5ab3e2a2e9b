"""Fields that are filled from Kafka messages: which types fit, and what becomes of values that do not."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.records.message_metadata import MessagePart, body_type, checked_metadata, typed_column
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of

KIND = record_type(
    "body STRING, text STRING NOT NULL, raw BINARY, small TINYINT, n INT, big BIGINT, at TIMESTAMP, x DOUBLE"
)
AT = dt.datetime(2026, 11, 24, 2, 0, 0, 250_000, dt.UTC)


def column(field: str, part: MessagePart, values: list[Any]) -> tuple[list[Any], dict[int, str]]:
    raw = pa.array(values, pa.binary() if part.is_bytes else pa.int64())
    found, bad = typed_column(KIND.field(field), part, raw)
    assert found.type == KIND.field(field).arrow_type
    return found.to_pylist(), bad


@pytest.mark.parametrize(
    ("field", "part", "allowed"),
    [
        ("x", ps.kafka_key(), "str, bytes or int"),
        ("at", ps.kafka_header("h"), "str, bytes or int"),
        ("text", ps.kafka_timestamp(), "a timestamp, or a 64-bit integer of milliseconds"),
        ("n", ps.kafka_timestamp(), "a timestamp, or a 64-bit integer of milliseconds"),
        ("n", ps.kafka_offset(), "a 64-bit integer"),
        ("small", ps.kafka_partition(), "an integer of 32 or 64 bits"),
        ("text", ps.kafka_partition(), "an integer of 32 or 64 bits"),
    ],
)
def test_a_type_that_does_not_fit_is_refused(field: str, part: MessagePart, allowed: str) -> None:
    """When the stream is described, with the types that do."""
    with pytest.raises(SchemaError, match=f"the field '{field}' is .* and cannot be kafka_.*; use {allowed}"):
        checked_metadata("readings", KIND, {field: part})


def test_metadata_names_fields_and_parts() -> None:
    """Anything else is refused, and so are records without a body."""
    with pytest.raises(SchemaError, match=r"metadata names 'device', but Record has no field 'device'; its"):
        checked_metadata("readings", KIND, {"device": ps.kafka_key()})
    with pytest.raises(
        SchemaError, match=r"'key'} does not name a part of a message\. Use ps\.kafka_key\(\)"
    ):
        checked_metadata("readings", KIND, {"text": "key"})  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match=r"kafka_header needs the name of a header"):
        ps.kafka_header("")
    with pytest.raises(SchemaError, match=r"fills all fields of Record, so none is left for the body"):
        checked_metadata("readings", record_type("a STRING"), {"a": ps.kafka_key()})
    with pytest.raises(SchemaError, match="metadata names 'device'"):
        ps.Job("j").data_stream("s", schema="a STRING", metadata={"device": ps.kafka_key()})


def test_keys_and_headers_are_read_by_the_type_of_the_field() -> None:
    """As UTF-8 text, bytes, or decimal digits."""
    assert column("text", ps.kafka_key(), ["ü".encode(), b""]) == (["ü", ""], {})
    assert column("raw", ps.kafka_header("h"), [b"\xff", None]) == ([b"\xff", None], {})
    assert column("n", ps.kafka_key(), [b"7", b"-12", None]) == ([7, -12, None], {})


def test_values_that_do_not_fit_are_named() -> None:
    """Only they; the message says which part of the message it was, and shows it."""
    found, bad = column("text", ps.kafka_key(), [b"a", b"\xff", b"c", None])
    assert found[0::2] == ["a", "c"]
    assert bad == {
        1: r"field 'text': the key b'\xff' of the message is not UTF-8 text",
        3: "field 'text' is not optional, and the message has no key",
    }
    found, bad = column("n", ps.kafka_header("count"), [b"1", b"0x1f", b"", b"99999999999", b" 2", b"3"])
    assert (found[0], found[5], sorted(bad)) == (1, 3, [1, 2, 3, 4])
    assert bad[3] == (
        "field 'n': the header 'count' b'99999999999' of the message is not a whole number that fits int32"
    )


def test_timestamps_are_times_or_milliseconds() -> None:
    """Beyond the years that Python knows they do not fit a time."""
    at_ms = int(AT.timestamp() * 1000)
    assert column("at", ps.kafka_timestamp(), [at_ms, None]) == ([AT, None], {})
    assert column("big", ps.kafka_timestamp(), [at_ms, 1 << 62]) == ([at_ms, 1 << 62], {})
    found, bad = column("at", ps.kafka_timestamp(), [1 << 62, at_ms, -(1 << 62)])
    assert (found, sorted(bad)) == ([None, AT, None], [0, 2])
    assert "lies beyond the years 1 to 9999" in bad[0]


@dataclasses.dataclass
class Reading:
    """A reading with a default."""

    device: str
    value: float
    unit: str = "C"


def test_classes_of_one_name_keep_their_own_defaults() -> None:
    """Record types of the same name and fields are equal, and still have different classes."""

    def made(default: str) -> str:
        @dataclasses.dataclass
        class Reading:
            device: str
            unit: str = default

        kind = record_type(Reading)
        bodies = body_type(kind, checked_metadata("s", kind, {"device": ps.kafka_key()}))
        found = format_of("json", bodies).decode(pa.array([b"{}"], pa.binary()))
        return str(found.batch.column("unit")[0])

    assert (made("C"), made("F")) == ("C", "F")


class Tagged(msgspec.Struct, tag="reading", rename="camel"):
    """A reading with other names in JSON."""

    device_id: str
    room_number: int
    unit_names: list[str] = msgspec.field(default_factory=lambda: ["C"])


def test_bodies_keep_defaults_and_names() -> None:
    """Those of the class of the whole record."""
    plain = checked_metadata("s", record_type(Reading), {"device": ps.kafka_key()})
    bodies = body_type(record_type(Reading), plain)
    raw = pa.array([b'{"value": 1.5}', b'{"device": "ignored", "value": 2, "unit": "F"}'], pa.binary())
    decoded = format_of("json", bodies).decode(raw)
    assert decoded.batch.to_pylist() == [{"value": 1.5, "unit": "C"}, {"value": 2.0, "unit": "F"}]
    tagged = checked_metadata("s", record_type(Tagged), {"device_id": ps.kafka_key()})
    raw = pa.array(
        [b'{"type": "reading", "roomNumber": 3}', b'{"type": "other", "roomNumber": 3}'], pa.binary()
    )
    decoded = format_of("json", body_type(record_type(Tagged), tagged)).decode(raw)
    assert decoded.batch.to_pylist() == [{"room_number": 3, "unit_names": ["C"]}]
    assert [row for row, _ in decoded.bad] == [1]
