"""Protobuf with a registry: messages are read by the file and the place that they name, and written with both."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from registry_server import RegistryServer, descriptor_of, running_registry

from penstock.bindings.types import RegistryBinding
from penstock.errors import BindingError, SchemaError
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type
from penstock.records.wire_formats import Decoded
from penstock.registries.protobuf_files import index_bytes, read_indexes
from penstock.registries.protobuf_format import RegisteredProtobufFormat
from penstock.registries.registry_client import RegistryClient

READING = """syntax = "proto3";
package plant;
message Head { int32 x = 1; }
message Reading {
  string sensor = 1;
  double celsius = 2;
  message Inner { string sensor = 1; float celsius = 2; }
}
"""
NEWER = """syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
import "parts/unit.proto";
message Reading {
  string sensorID = 1;
  float celsius = 2;
  optional string note = 3;
  int32 firmware = 4;
  google.protobuf.Timestamp at = 5;
  parts.Unit unit = 6;
}
"""
UNIT = """syntax = "proto3";
package parts;
enum Unit { CELSIUS = 0; KELVIN = 1; }
"""


@dataclasses.dataclass
class Reading:
    sensor: str
    celsius: float
    room: str = "hall"
    note: str | None = None


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running


def client(registry: RegistryServer) -> RegistryClient:
    return RegistryClient("readings", RegistryBinding(registry.url))


def decoded(registry: RegistryServer, schema: Any, *values: bytes | None) -> Decoded:
    return RegisteredProtobufFormat(record_type(schema), client(registry)).decode(
        pa.array(values, pa.binary())
    )


def source_of(name: str, text: str, imported: dict[str, str]) -> ProtobufSource:
    """Return a message of .proto files, as protoc makes it."""
    from google.protobuf import timestamp_pb2
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    files = [timestamp_pb2.DESCRIPTOR.serialized_pb]
    for place, one in {**imported, "main.proto": text}.items():
        file = FileDescriptorProto.FromString(descriptor_of(one, imported))
        file.name = place
        files.append(file.SerializeToString())
    return ProtobufSource(name, tuple(files))


def message(schema_id: int, place: bytes, source: ProtobufSource, **fields: Any) -> bytes:
    """Return a message as Confluent's serializer writes it."""
    made = message_factory.GetMessageClass(source.descriptor())(**fields)
    return struct.pack(">bI", 0, schema_id) + place + bytes(made.SerializeToString())


def test_messages_of_several_schemas_and_places_are_decoded_in_their_order(registry: RegistryServer) -> None:
    """A field added, one gone, one wider, another message of the file and one within a message, in one batch."""
    registry.register("unit", UNIT, schemaType="PROTOBUF")
    reference = [{"name": "parts/unit.proto", "subject": "unit", "version": 1}]
    old = registry.register("t-value", READING, schemaType="PROTOBUF")
    new = registry.register("t-value", NEWER, schemaType="PROTOBUF", references=reference)
    older, inner = source_of("plant.Reading", READING, {}), source_of("plant.Reading.Inner", READING, {})
    newer = source_of("plant.Reading", NEWER, {"parts/unit.proto": UNIT})
    values = [
        message(old, b"\2\2", older, sensor="a", celsius=1.5),
        message(old, b"\4\2\0", inner, sensor="b", celsius=2.5),
        message(new, b"\0", newer, sensorID="c", celsius=3.5, note="x", firmware=7),
        message(old, b"\2\2", older),
    ]
    found = decoded(registry, "sensor STRING NOT NULL, celsius DOUBLE, note STRING", values[0], *values[2:])
    assert [reason for _, reason in found.bad] == [
        f"schema {new}: the message plant.Reading has no field 'sensor', which must have a value"
    ]
    found = decoded(registry, "celsius DOUBLE, note STRING", *values)
    assert (found.rows, found.bad) == (None, [])
    assert found.batch.to_pylist() == [
        {"celsius": 1.5, "note": None},
        {"celsius": 2.5, "note": None},
        {"celsius": 3.5, "note": "x"},
        {"celsius": 0.0, "note": None},
    ]
    found = decoded(registry, Reading, values[0])
    assert found.batch.to_pylist() == [{"sensor": "a", "celsius": 1.5, "room": "hall", "note": None}]
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    value = message(new, b"\0", newer, at=at, unit=1)
    found = decoded(registry, "at TIMESTAMP, unit STRING, sensor_id STRING", value)
    assert found.batch.to_pylist() == [{"at": at, "unit": "KELVIN", "sensor_id": ""}]


def test_what_does_not_decode_is_bad_and_the_rest_is_not(registry: RegistryServer) -> None:
    number = registry.register("t-value", READING, schemaType="PROTOBUF")
    avro = registry.register("avro", {"type": "record", "name": "R", "fields": []})
    head = struct.pack(">bI", 0, number)
    good = message(number, b"\2\2", source_of("plant.Reading", READING, {}), sensor="a", celsius=1.0)
    found = decoded(
        registry,
        Reading,
        good,
        None,
        head,
        head + b"\x81",
        head + b"\1",
        head + b"\2\x0a",
        head + b"\xfe\xff\xff\xff\x0f",
        good[:-1],
        head + b"\2\2\x0a\1\xff",
        head + b"\0",
        struct.pack(">bI", 0, avro),
        b"{}",
        good,
    )
    assert found.rows is not None
    assert found.rows.tolist() == [0, 12]
    reasons = dict(found.bad)
    assert sorted(reasons) == list(range(1, 12))
    assert reasons[2].endswith("the id of its schema is not followed by a place there")
    assert "a negative number" in reasons[4]
    assert "has no message at [5]" in reasons[5]
    assert "has no field of Reading" in reasons[9]
    assert "it is of type AVRO, not PROTOBUF" in reasons[10]


@pytest.mark.parametrize(
    ("text", "imported", "why"),
    [
        ('syntax = "proto3"; message A { A room = 1; string sensor = 2; }', {}, "contains itself"),
        (
            'syntax = "proto3"; import "x.proto"; message A { X x = 1; }',
            {"x.proto": "message X {}"},
            "it imports",
        ),
    ],
)
def test_a_file_that_cannot_be_columns_is_named(
    registry: RegistryServer, text: str, imported: dict[str, str], why: str
) -> None:
    import base64

    serialized = base64.b64encode(descriptor_of(text, imported)).decode()
    number = registry.register("t-value", serialized, schemaType="PROTOBUF")
    found = decoded(registry, Reading, struct.pack(">bI", 0, number) + b"\0")
    assert why in found.bad[0][1]


def message_of(registry: RegistryServer, text: str, body: bytes) -> bytes:
    """Return a message of the first type in a file, as Confluent's serializer writes it."""
    number = registry.register("odd-value", text, schemaType="PROTOBUF")
    return struct.pack(">bI", 0, number) + b"\0" + body


@dataclasses.dataclass
class Part:
    part_size: int
    count: int = 7


@dataclasses.dataclass
class Machine:
    part: Part | None
    parts: list[Part]


def test_names_and_defaults_within_nested_messages(registry: RegistryServer) -> None:
    """As those of the fields themselves: the class has a field that the message lacks, and another spelling."""
    text = """syntax = "proto3"; message M { P part = 1; repeated P parts = 2; }
        message P { int32 partSize = 1; uint64 more = 2; }"""
    found = decoded(registry, Machine, message_of(registry, text, b"\x0a\x02\x08\x05\x12\x02\x08\x06"))
    assert found.bad == []
    assert record_type(Machine).objects(found.batch) == [Machine(Part(5), [Part(6)])]


def test_a_message_within_itself_that_nobody_asks_for_is_left_out(registry: RegistryServer) -> None:
    text = """syntax = "proto3"; import "google/protobuf/struct.proto";
        message M { int32 a = 1; M inner = 2; google.protobuf.Struct more = 3; }"""
    found = decoded(registry, "a INT", message_of(registry, text, b"\x08\x05\x12\x02\x08\x06\x1a\x00"))
    assert found.batch.to_pylist() == [{"a": 5}]


ODD = [
    ("message M { double a = 1; }", "a FLOAT", b"\x09" + struct.pack("<d", 1e300), "too large for 32 bits"),
    ("message M { int64 a = 1; }", "a TIMESTAMP", b"\x08\x05", "does not say in which unit"),
    ("message M { N a = 1; } message N { int64 b = 1; }", "a STRUCT<b: DATE>", b"", "in which unit"),
    ("message M { map<string, N> a = 1; } message N {int32 b = 1;}", "a MAP<STRING, STRUCT<b: INT>>",
     b"\x0a\x03\x0a\x01k", "cannot be converted"),
    ("message M { int32 aB = 1; int32 A_B = 2; }", "a_b INT", b"", "both match the field 'a_b'"),
    ("message M { E a = 1; } enum E { C = 0; }", "a INT", b"\x08\x00", "Failed to parse string"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "ddl", "body", "why"), ODD)
def test_what_the_converter_cannot_do_is_a_dead_letter(
    registry: RegistryServer, text: str, ddl: str, body: bytes, why: str
) -> None:
    """It panics at some messages, which is no exception of Python's, and takes numbers for times."""
    found = decoded(registry, ddl, message_of(registry, f'syntax = "proto3"; {text}', body))
    assert len(found.bad) == 1
    assert why in found.bad[0][1]


def test_groups_are_refused_and_declared_defaults_count(registry: RegistryServer) -> None:
    """Both are of proto2. A group came out as null, and so did the default."""
    text = """syntax = "proto2"; message M { optional int32 a = 1 [default = 42]; optional E e = 3 [default = B];
        optional group G = 2 { optional int32 z = 1; } } enum E { A = 0; B = 1; }"""
    message = message_of(registry, text, b"\x13\x08\x05\x14")
    assert decoded(registry, "a INT, e STRING", message).batch.to_pylist() == [{"a": 42, "e": "B"}]
    assert "is a group" in decoded(registry, "a INT, g STRUCT<z: INT>", message).bad[0][1]


@pytest.fixture
def texts(registry: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> RegistryServer:
    """A registry that has protobuf as text alone."""
    monkeypatch.setattr(registry, "serialized", lambda found: found["schema"])
    return registry


def test_files_that_are_text_alone_are_compiled(texts: RegistryServer) -> None:
    """With what they import, from the registry and from protobuf; each once for all its messages."""
    texts.register("unit", UNIT, schemaType="PROTOBUF")
    reference = [{"name": "parts/unit.proto", "subject": "unit", "version": 1}]
    number = texts.register("t-value", NEWER, schemaType="PROTOBUF", references=reference)
    newer = source_of("plant.Reading", NEWER, {"parts/unit.proto": UNIT})
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    value = message(number, b"\0", newer, sensorID="c", celsius=3.5, at=at, unit=1)
    found = decoded(texts, "sensor_id STRING, celsius DOUBLE, at TIMESTAMP, unit STRING", value, value)
    assert found.bad == []
    assert found.batch.to_pylist() == [{"sensor_id": "c", "celsius": 3.5, "at": at, "unit": "KELVIN"}] * 2


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("message A { nonsense }", "", r"protoc refuses its text (schema.proto:1:"),
        ('import "google/nothing.proto"; message A {}', "", "google/nothing.proto: File not found"),
        ('import "/etc/passwd"; message A {}', "", "protoc refuses its text"),
        (
            "message A {}",
            "../../a.proto",
            "it refers to '../../a.proto', which is not the name of a .proto file",
        ),
        ("message A {}", "/tmp/a.proto", "it refers to '/tmp/a.proto', which is not the name"),
    ],
)
def test_a_text_that_is_no_file_is_named(texts: RegistryServer, text: str, name: str, why: str) -> None:
    """Nothing is written or read outside of the folder of the compiler."""
    texts.register("part", "message B {}", schemaType="PROTOBUF")
    reference = [{"name": name, "subject": "part", "version": 1}] if name else []
    number = texts.register("t-value", text, schemaType="PROTOBUF", references=reference)
    found = decoded(texts, Reading, struct.pack(">bI", 0, number) + b"\0")
    assert why in found.bad[0][1]


def test_a_compiler_that_is_missing_ends_the_run(
    texts: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it, and no dead letters."""
    number = texts.register("t-value", READING, schemaType="PROTOBUF")
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(BindingError, match=r"pip install 'penstock\[protobuf-text\]'"):
        decoded(texts, Reading, struct.pack(">bI", 0, number) + b"\0")


def test_what_is_encoded_names_its_message_and_is_decoded_to_the_same() -> None:
    """The files of a message are registered, each once, behind those that they import."""
    text = NEWER.replace("message Reading {", "message Head { } message Outer { message Reading {") + "}"
    source = source_of("plant.Outer.Reading", text, {"parts/unit.proto": UNIT})
    kind = record_type("sensor_id STRING, celsius FLOAT, note STRING")
    with running_registry() as registry:
        sink = RegisteredProtobufFormat(kind, client(registry)).registered("out-value", source)
        assert list(registry.subjects) == ["parts/unit.proto", "out-value"]
        [number] = registry.subjects["out-value"]
        assert registry.schemas[number]["references"] == [
            {"name": "parts/unit.proto", "subject": "parts/unit.proto", "version": 1}
        ]
        asked = len(registry.asked)
        batch = kind.batch([kind.python_class("a", 1.5, None), kind.python_class("b", 2.5, "x")])
        raw = pickle.loads(pickle.dumps(sink)).encode(batch)
        assert len(registry.asked) == asked, "a sink's workers need no registry"
        assert raw[0].as_py().startswith(struct.pack(">bI", 0, number) + b"\4\2\0")
        found = RegisteredProtobufFormat(kind, client(registry)).decode(raw)
    assert found.bad == []
    assert found.batch.equals(batch)


def test_a_sink_needs_a_message_class(registry: RegistryServer) -> None:
    sink = RegisteredProtobufFormat(record_type(Reading), client(registry))
    with pytest.raises(SchemaError, match="has no protobuf message"):
        sink.registered("out-value", None)


@examples(100)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.binary(max_size=3))
def test_places_are_read_as_they_are_written(indexes: list[int], rest: bytes) -> None:
    """With zigzag numbers as a plain encoder makes them; what is behind them stays."""

    def varint(number: int) -> bytes:
        return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])

    written = index_bytes(indexes)
    plain = b"".join(varint(2 * number) for number in (len(indexes), *indexes))
    assert written == (b"\0" if indexes == [0] else plain)
    for one in (written, plain):
        assert read_indexes(b"head" + one + rest, 4) == (tuple(indexes), 4 + len(one))
        with pytest.raises(ValueError, match="place"):
            read_indexes(one[:-1], 0)
