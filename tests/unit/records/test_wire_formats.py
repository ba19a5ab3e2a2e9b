"""Formats: good records come through in order, bad ones are found exactly, and the wire is that of other libraries."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import SchemaError
from penstock.records.json_lines import JsonLines
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.records.wire_formats import Decoded, format_of

sys.path.append(str(Path(__file__).parents[3] / "examples" / "temperature_control"))
import messages_pb2 as messages

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@dataclass
class Reading:
    sensor_id: int
    temperature: float
    note: str | None = None


class Command(Enum):
    ON = "ON"
    OFF = "OFF"


@dataclass
class HeaterCommand:
    sensor_id: int
    command: Command


def check(decoded: Decoded, kind: RecordType, expected: list[Any]) -> None:
    """`expected` has a record for each good value and None for each bad one, in order."""
    rows = list(range(len(expected))) if decoded.rows is None else decoded.rows.tolist()
    assert rows == [row for row, record in enumerate(expected) if record is not None]
    assert kind.objects(decoded.batch) == [record for record in expected if record is not None]
    assert [row for row, _ in decoded.bad] == [row for row, record in enumerate(expected) if record is None]
    assert all(reason for _, reason in decoded.bad)


def binary(values: list[bytes | None]) -> pa.Array:
    """A column that begins in the middle of its buffers, as slices do."""
    around = b'{"sensor_id": 0, "temperature": 0.0}\n'
    return pa.array([around, *values, around], pa.binary()).slice(1, len(values))


JSON_READINGS = st.builds(Reading, st.integers(-(2**63), 2**63 - 1), FLOATS, st.none() | st.text(max_size=3))
BAD_JSON = st.sampled_from(
    [
        None,
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'{"sensor_id": 1}',
        b'{"sensor_id": 1, "temperature": "warm"}',
        b'{"sensor_id": "1", "temperature": 2.0}',
        b'{"sensor_id": 1.5, "temperature": 2.0}',
        b'{"sensor_id": 99999999999999999999, "temperature": 2.0}',
        b'{"sensor_id": 1, "temperature": NaN}',
        b'{"sensor_id": 1, "temperature": 2.0, "note": "\xff"}',
        b'{"sensor_id": 1, "temperature": 2.0}{"sensor_id": 1, "temperature": 2.0}',
        b'{"sensor_id": 1, "temperature": 2.0}\n{"sensor_id": 1, "temperature": 2.0}',
        b'{"sensor_id": 1, "temperature": 2.0, "note": "\\ud800"}',
    ]
)


@examples(100)
@given(data=st.data())
def test_bad_json_is_found_among_good(data: st.DataObject) -> None:
    """Any mixture, whatever whitespace and unknown fields the good ones have."""
    values: list[bytes | None] = []
    expected: list[Any] = []
    for item in data.draw(st.lists(JSON_READINGS | BAD_JSON, max_size=12)):
        if not isinstance(item, Reading):
            values.append(item)
            expected.append(None)
            continue
        text = json.dumps({**vars(item), "unknown": [1]}, indent=data.draw(st.sampled_from([None, 1])))
        values.append(text.encode() + data.draw(st.sampled_from([b"", b"\n", b"\r\n"])))
        expected.append(item)
    kind = record_type(Reading)
    check(format_of("json", kind).decode(binary(values)), kind, expected)


ONE = b'{"sensor_id": 1, "temperature": 2.0}'


@pytest.mark.parametrize(
    "others",
    [
        [b""],
        [b"  "],
        [ONE[:15], ONE[15:]],
        [b'{"sensor_id": 1, "unknown": {}', b', "temperature": 2.0}'],
        [b'{"unknown": {}', b', "sensor_id": 1, "temperature": 2.0}'],
        [b'{"unknown": [', b'{}], "sensor_id": 1, "temperature": 2.0}'],
    ],
)
@pytest.mark.parametrize("between", [b"", b" ", b"\n"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_records_keep_their_places_when_errors_cancel_out(
    others: list[bytes], between: bytes, end: bytes
) -> None:
    """Two records in one value and one record in two values are all bad, though their number is right."""
    kind = record_type(Reading)
    values = [ONE, ONE + between + ONE, *others, ONE]
    expected = [Reading(1, 2.0), None, *(None for _ in others), Reading(1, 2.0)]
    check(format_of("json", kind).decode(binary([value + end for value in values])), kind, expected)


@dataclass
class Picky:
    """A record that checks its values, with any exception."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("\ud800")


def test_a_record_that_refuses_its_values_is_bad() -> None:
    """Whatever its class raises is the reason, as text that can be written."""
    kind = record_type(Picky)
    decoded = format_of("json", kind).decode(binary([b'{"number": 1}', b'{"number": 13}', b'{"number": 2}']))
    check(decoded, kind, [Picky(1), None, Picky(2)])
    assert decoded.bad == [(1, r"KeyError: '\ud800'")]


@given(st.lists(JSON_READINGS, max_size=6))
def test_json_is_written_as_others_read_it(readings: list[Reading]) -> None:
    """The standard library reads what is encoded, and penstock reads it again."""
    kind = record_type(Reading)
    encoded = format_of("json", kind).encode(kind.batch(readings))
    assert [json.loads(value.as_py()) for value in encoded] == [vars(reading) for reading in readings]
    check(format_of("json", kind).decode(encoded), kind, readings)


def test_lines_in_the_middle_of_a_buffer_are_read_in_place() -> None:
    """Where every value ends its line, nothing is copied, and neighbours in the buffer are not read."""
    kind = record_type(Reading)
    lines: list[bytes | None] = [b'{"sensor_id": %d, "temperature": 1.0}\n' % n for n in (1, 2, 3)]
    check(format_of("json", kind).decode(binary(lines)), kind, [Reading(n, 1.0) for n in (1, 2, 3)])


def test_nan_is_a_record_where_the_stream_allows_it() -> None:
    """NaN is written as null; with `allow_nan` protobuf's NaN comes through."""
    kind = record_type(Reading)
    assert JsonLines(kind).encode(kind.batch([Reading(1, math.nan)])) == (
        b'{"sensor_id":1,"temperature":null,"note":null}\n'
    )
    source = ProtobufSource.of(messages.SensorData)
    schema = record_type("sensor_id INT, temperature DOUBLE")
    wire = binary([messages.SensorData(sensorID=1, temperature=math.nan).SerializeToString()])
    refused = format_of("protobuf", schema, protobuf=source).decode(wire)
    assert refused.bad == [(0, "field 'temperature' is NaN")]
    allowed = format_of("protobuf", schema, protobuf=source, allow_nan=True).decode(wire)
    assert allowed.bad == []
    assert math.isnan(schema.objects(allowed.batch)[0].temperature)


SENSORS = st.builds(messages.SensorData, sensorID=INT32, temperature=FLOATS)
BAD_WIRE = st.sampled_from(
    [None, b"\x08", b"\xff\xff", messages.SensorData(sensorID=5, temperature=1.5).SerializeToString()[:-1]]
)


@examples(100)
@given(st.lists(SENSORS | BAD_WIRE, max_size=12))
def test_truncated_protobuf_is_found_among_good(items: list[Any]) -> None:
    """What the plain library writes is read; what is cut off is found; an empty message is one of defaults."""
    kind = record_type(messages.SensorData)
    values = [item if item is None or isinstance(item, bytes) else item.SerializeToString() for item in items]
    good = [None if item is None or isinstance(item, bytes) else item for item in items]
    expected = [None if m is None else kind.python_class(m.sensorID, m.temperature) for m in good]
    decoded = format_of("protobuf", kind, protobuf=ProtobufSource.of(messages.SensorData)).decode(
        binary(values)
    )
    check(decoded, kind, expected)


@given(st.lists(st.builds(HeaterCommand, INT32, st.sampled_from(Command)), max_size=8))
def test_the_plain_library_reads_what_is_written(commands: list[HeaterCommand]) -> None:
    """Names meet without case and underscores, members of enumerations by name; and back."""
    kind = record_type(HeaterCommand)
    wire = format_of("protobuf", kind, protobuf=ProtobufSource.of(messages.HeaterControl))
    encoded = wire.encode(kind.batch(commands))
    parsed = [messages.HeaterControl.FromString(value.as_py()) for value in encoded]
    assert [(m.sensorID, messages.HeaterCommand.Name(m.command).upper()) for m in parsed] == [
        (c.sensor_id, c.command.value) for c in commands
    ]
    check(wire.decode(encoded), kind, commands)


def test_an_unknown_member_is_a_bad_record() -> None:
    """A newer sender may know commands that this job does not."""
    kind = record_type(HeaterCommand)
    wire = format_of("protobuf", kind, protobuf=ProtobufSource.of(messages.HeaterControl))
    values = [
        messages.HeaterControl(sensorID=n, command=command).SerializeToString()
        for n, command in [(1, 0), (2, 7)]
    ]
    decoded = wire.decode(binary(values))
    check(decoded, kind, [HeaterCommand(1, Command.ON), None])


@dataclass
class Line:
    text: str


@dataclass
class Blob:
    data: bytes


def test_bytes_are_taken_as_they_are() -> None:
    """Text loses its line end and must be UTF-8; bytes are not touched."""
    lines = format_of("bytes", record_type(Line))
    decoded = lines.decode(binary([b"one\n", b"\xff", "zwei ü\r\n".encode(), None, b""]))
    check(decoded, record_type(Line), [Line("one"), None, Line("zwei ü"), None, Line("")])
    blobs = format_of("bytes", record_type(Blob))
    check(blobs.decode(binary([b"one\n", b"\xff"])), record_type(Blob), [Blob(b"one\n"), Blob(b"\xff")])
    assert blobs.encode(record_type(Blob).batch([Blob(b"\x00")])).to_pylist() == [b"\x00"]


def test_formats_that_do_not_fit_are_refused() -> None:
    """The error names the record and what is missing."""
    with pytest.raises(SchemaError, match="does not fit format=bytes, which needs a record with one field"):
        format_of("bytes", record_type(Reading))
    with pytest.raises(SchemaError, match=r"Reading has no protobuf message\. Give the generated class"):
        format_of("protobuf", record_type(Reading))
    with pytest.raises(
        SchemaError, match=r"SensorData has no field for Reading\.note; its fields are sensorID, temp"
    ):
        format_of("protobuf", record_type(Reading), protobuf=ProtobufSource.of(messages.SensorData))


class Nested(msgspec.Struct):
    """Every sort of value that JSON Lines may hold."""

    words: dict[str, int]
    parts: list[dict[str, list[int]]]
    command: Command
    data: bytes


def test_json_lines_hold_nested_values() -> None:
    """Maps are objects, enumerations their values, bytes base64; an empty map is an empty object."""
    kind = record_type(Nested)
    made = [Nested({}, [{"a": []}, {}], Command.ON, b"\x00\xff")]
    text = JsonLines(kind).encode(kind.batch(made))
    assert json.loads(text) == {"words": {}, "parts": [{"a": []}, {}], "command": "ON", "data": "AP8="}
    check(format_of("json", kind).decode(binary([text])), kind, made)


def rich_message() -> Any:
    """A message class with every kind of field, made without protoc."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="rich.proto", package="penstock.tests", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    size = file.enum_type.add(name="Size")
    size.value.add(name="SMALL", number=0)
    size.value.add(name="LARGE", number=1)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=field.TYPE_INT32, label=1)
    rich = file.message_type.add(name="Rich")
    entry = rich.nested_type.add(name="TableEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_SINT32, label=1)
    rich.oneof_decl.add(name="_maybe")
    made = [
        ("whole", field.TYPE_INT64, 1, ""),
        ("large", field.TYPE_UINT64, 1, ""),
        ("flag", field.TYPE_BOOL, 1, ""),
        ("text", field.TYPE_STRING, 1, ""),
        ("data", field.TYPE_BYTES, 1, ""),
        ("many", field.TYPE_SINT32, 3, ""),
        ("inner", field.TYPE_MESSAGE, 1, ".penstock.tests.Inner"),
        ("inners", field.TYPE_MESSAGE, 3, ".penstock.tests.Inner"),
        ("size", field.TYPE_ENUM, 1, ".penstock.tests.Size"),
        ("at", field.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
        ("table", field.TYPE_MESSAGE, 3, ".penstock.tests.Rich.TableEntry"),
    ]
    for number, (name, kind, label, type_name) in enumerate(made, start=1):
        rich.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    rich.field.add(
        name="maybe", number=12, type=field.TYPE_INT32, label=1, oneof_index=0, proto3_optional=True
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("penstock.tests.Rich"))


RICH = rich_message()
WORDS = st.text(st.characters(codec="utf-8"), max_size=3)
INNERS = st.fixed_dictionaries({"n": INT32})
RICH_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "whole": st.integers(-(2**63), 2**63 - 1),
        "large": st.integers(0, 2**64 - 1),
        "flag": st.booleans(),
        "text": WORDS,
        "data": st.binary(max_size=3),
        "many": st.lists(INT32, max_size=3),
        "inner": INNERS,
        "inners": st.lists(INNERS, max_size=2),
        "size": st.sampled_from(["SMALL", "LARGE"]),
        "at": st.datetimes(),
        "table": st.dictionaries(WORDS, INT32, max_size=1),
        "maybe": INT32,
    },
)


@given(st.lists(RICH_VALUES, max_size=4))
def test_every_kind_of_protobuf_field_comes_back(rich: list[dict[str, Any]]) -> None:
    """What the plain library writes is read as plain Python values, and it reads what is written again."""
    kind = record_type(RICH)
    wire = format_of("protobuf", kind, protobuf=ProtobufSource.of(RICH))
    values = [RICH(**fields).SerializeToString(deterministic=True) for fields in rich]
    decoded = wire.decode(binary(values))
    records = kind.objects(decoded.batch)
    assert decoded.bad == []
    for fields, record in zip(rich, records, strict=True):
        utc = {name: v.replace(tzinfo=dt.UTC) if name == "at" else v for name, v in fields.items()}
        assert {name: getattr(record, name) for name in fields} == utc
        assert record == kind.python_class(**utc)
        assert type(record.at) in (dt.datetime, type(None))
    # Defaults within the entries of a map may be left out, so bytes may differ where messages do not.
    parsed = [RICH.FromString(value.as_py()) for value in wire.encode(kind.batch(records))]
    assert parsed == [RICH(**fields) for fields in rich]


def test_protobuf_values_that_python_cannot_hold_are_bad() -> None:
    """Text that is no UTF-8, times beyond the calendar."""
    kind = record_type(RICH)
    wire = format_of("protobuf", kind, protobuf=ProtobufSource.of(RICH))
    never = RICH()
    never.at.seconds = 2**50
    values = [b"", b"\x22\x01\xff", never.SerializeToString(), b"\x22\x01a"]
    decoded = wire.decode(binary(values))
    check(decoded, kind, [kind.python_class(), None, None, kind.python_class(text="a")])
    assert "UTF-8" in decoded.bad[0][1]
    assert "beyond the years" in decoded.bad[1][1]


def test_a_member_that_the_message_lacks_is_not_written() -> None:
    """It would come out as the first one; so an open enumeration's number, read as text, is not sent on as zero."""
    kind = record_type(RICH)
    wire = format_of("protobuf", kind, protobuf=ProtobufSource.of(RICH))
    (record,) = kind.objects(wire.decode(binary([b"\x48\x07"])).batch)
    with pytest.raises(SchemaError, match=r"field 'size' .* '7' is not one of 'LARGE', 'SMALL'"):
        kind.batch([record])
