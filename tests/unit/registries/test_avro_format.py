"""Avro with a schema registry: what others write is read by the schema that it names, and the other way round."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import io
import json
import pickle
import socket
import struct
import sys
import time
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from answering_server import answering
from registry_server import RegistryServer, running_registry

from penstock.bindings.types import RegistryBinding
from penstock.errors import BindingError, ExternalSystemError, SchemaError
from penstock.records.schemas import record_type
from penstock.registries import registry_client
from penstock.registries.avro_format import AvroFormat, check_installed
from penstock.registries.avro_schemas import schema_text
from penstock.registries.registry_client import RegistryClient, get_client


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclasses.dataclass
class Reading:
    sensor: str
    celsius: float
    room: str = "hall"
    note: str | None = None


@dataclasses.dataclass
class Inner:
    x: int | None
    y: str | None


@dataclasses.dataclass
class Everything:
    i: int
    f: float
    b: bool | None
    s: str
    y: bytes
    t: dt.datetime
    d: dt.date
    m: decimal.Decimal
    xs: list[int]
    by_name: dict[str, float]
    inner: Inner
    none: str | None


READING = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "celsius", "type": "double"}],
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running


def client(registry: RegistryServer, **login: Any) -> RegistryClient:
    return RegistryClient("readings", RegistryBinding(registry.url, **login))


def message(schema_id: int, schema: Any, record: Any) -> bytes:
    """Return a message as Confluent's serializer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def column(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_messages_of_several_schemas_are_decoded_in_their_order(registry: RegistryServer) -> None:
    """A field added with a default, one that is gone, one that became wider, in one batch."""
    newer = {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "firmware", "type": "int"},
            {"name": "celsius", "type": "int"},
            {"name": "sensor", "type": ["null", "string"]},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    old, new = registry.register("t-value", READING), registry.register("t-value", newer)
    found = AvroFormat(record_type(Reading), client(registry)).decode(
        column(
            message(new, newer, {"firmware": 1, "celsius": 20, "sensor": "a", "note": "x"}),
            message(old, READING, {"sensor": "b", "celsius": 20.5}),
            message(new, newer, {"firmware": 1, "celsius": 21, "sensor": "c", "note": None}),
        )
    )
    assert (found.rows, found.bad) == (None, [])
    assert found.batch.to_pylist() == [
        {"sensor": "a", "celsius": 20.0, "room": "hall", "note": "x"},
        {"sensor": "b", "celsius": 20.5, "room": "hall", "note": None},
        {"sensor": "c", "celsius": 21.0, "room": "hall", "note": None},
    ]


def test_what_does_not_decode_is_bad_and_the_rest_is_not(registry: RegistryServer) -> None:
    nullable = {**READING, "fields": [READING["fields"][0], {"name": "celsius", "type": ["null", "double"]}]}
    old, new = registry.register("t-value", READING), registry.register("t-value", nullable)
    good = message(old, READING, {"sensor": "a", "celsius": 1.0})
    found = AvroFormat(record_type(Reading), client(registry)).decode(
        column(
            good,
            None,
            b"{}",
            b'{"sensor":"a"}',
            good[:-1],
            good + b"x",
            message(99, READING, {"sensor": "a", "celsius": 1.0}),
            message(new, nullable, {"sensor": "a", "celsius": None}),
            message(old, READING, {"sensor": "a", "celsius": float("nan")}),
            good,
        )
    )
    assert found.rows is not None
    assert found.rows.tolist() == [0, 9]
    assert len(found.batch) == 2
    reasons = dict(found.bad)
    assert sorted(reasons) == list(range(1, 9))
    assert reasons[1] == "the value is null"
    assert "does not begin with a zero" in reasons[2]
    assert "does not begin with a zero" in reasons[3]
    assert reasons[4].startswith(f"schema {old}: ")
    assert "has 11 bytes of Avro, and its schema describes 10" in reasons[5]
    assert "has no schema 99" in reasons[6]
    assert reasons[7] == "field 'celsius' is missing or null"
    assert reasons[8] == "field 'celsius' is NaN"


def test_a_column_may_be_part_of_another(registry: RegistryServer) -> None:
    number = registry.register("t-value", READING)
    values = [message(number, READING, {"sensor": str(n), "celsius": 1.0}) for n in range(5000)]
    found = AvroFormat(record_type(Reading), client(registry)).decode(column(b"x", None, *values).slice(2))
    assert found.batch.column("sensor").to_pylist() == [str(n) for n in range(5000)]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('"string"', "the schema is not that of a record"),
        (
            {
                "type": "record",
                "name": "O",
                "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
            },
            "an array whose items take no bytes",
        ),
        ({"type": "record", "name": "Other", "fields": [{"name": "a", "type": "unknown"}]}, "unknown"),
        ({"type": "record", "name": "Other", "fields": [{"name": "a", "type": "int"}]}, "no field 'sensor'"),
    ],
)
def test_a_schema_that_cannot_be_used_makes_its_messages_bad(
    registry: RegistryServer, schema: Any, why: str
) -> None:
    number = registry.register("t-value", schema)
    found = AvroFormat(record_type(Reading), client(registry)).decode(
        column(struct.pack(">bI", 0, number) + b"\2")
    )
    assert len(found.batch) == 0
    [(row, reason)] = found.bad
    assert row == 0
    assert why in reason


def test_schemas_of_other_types_are_named(registry: RegistryServer) -> None:
    number = registry.register("t-value", "{}", schemaType="JSON")
    found = AvroFormat(record_type(Reading), client(registry)).decode(column(struct.pack(">bI", 0, number)))
    assert "it is of type JSON, not AVRO" in found.bad[0][1]


def test_a_schema_may_refer_to_others(registry: RegistryServer) -> None:
    unit = {"type": "enum", "name": "plant.Unit", "symbols": ["celsius", "fahrenheit"]}
    registry.register("unit", unit)
    schema = {
        "type": "record",
        "name": "plant.Reading",
        "fields": [{"name": "sensorID", "type": "string"}, {"name": "unit", "type": "plant.Unit"}],
    }
    reference = [{"name": "plant.Unit", "subject": "unit", "version": 1}]
    number = registry.register("t-value", schema, references=reference)
    kind = record_type(dataclasses.make_dataclass("Measured", [("sensor_id", str), ("unit", Unit)]))
    raw = struct.pack(">bI", 0, number) + b"\x02a\x02"
    found = AvroFormat(kind, client(registry)).decode(column(raw))
    assert found.bad == []
    assert found.batch.to_pylist() == [{"sensor_id": "a", "unit": "fahrenheit"}]
    missing = registry.register("u-value", schema, references=[{**reference[0], "version": 7}])
    found = AvroFormat(kind, client(registry)).decode(column(struct.pack(">bI", 0, missing) + raw[5:]))
    assert "has no version 7 of 'unit'" in found.bad[0][1]


def test_logical_types_become_those_of_the_record(registry: RegistryServer) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    number, one = registry.register("t-value", schema), uuid.UUID(int=7)
    at = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    found = AvroFormat(record_type("id STRING, at TIMESTAMP"), client(registry)).decode(
        column(message(number, schema, {"id": one, "at": at}))
    )
    assert found.batch.to_pylist() == [{"id": str(one), "at": at}]


def test_a_number_of_nanoseconds_is_no_time(registry: RegistryServer) -> None:
    """The libraries do not know this logical type, so it is not taken for microseconds."""
    field = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-nanos"}}
    schema = {"type": "record", "name": "R", "fields": [field]}
    raw = column(message(registry.register("t-value", schema), schema, {"at": -1}))
    found = AvroFormat(record_type("at TIMESTAMP"), client(registry)).decode(raw)
    assert len(found.batch) == 0
    assert "at" in found.bad[0][1]


def test_what_is_encoded_is_what_fastavro_and_penstock_decode(registry: RegistryServer) -> None:
    kind = record_type(Everything)
    record = Everything(
        1,
        2.5,
        True,
        "ä",
        b"\0\xff",
        dt.datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=dt.UTC),
        dt.date(2026, 5, 1),
        decimal.Decimal("1.5"),
        [1, 2],
        {"a": 1.5},
        Inner(1, None),
        None,
    )
    batch = kind.batch([record, dataclasses.replace(record, i=2, b=None)])
    sink = AvroFormat(kind, client(registry)).registered("t-value")
    raw = pickle.loads(pickle.dumps(sink)).encode(batch)
    number = struct.unpack(">bI", raw[0].as_py()[:5])
    assert number == (0, 1)
    schema = fastavro.parse_schema(json.loads(registry.schemas[1]["schema"]))
    plain = fastavro.schemaless_reader(io.BytesIO(raw[1].as_py()[5:]), schema, None)
    assert (plain["i"], plain["inner"], plain["none"]) == (2, {"x": 1, "y": None}, None)
    found = AvroFormat(kind, client(registry)).decode(raw)
    assert found.bad == []
    assert found.batch.equals(batch)


def test_a_schema_is_registered_once_and_a_refusal_says_why(registry: RegistryServer) -> None:
    sink = AvroFormat(record_type(Reading), client(registry))
    sink.registered("a/b-value")
    sink.registered("a/b-value")
    assert list(registry.subjects) == ["a/b-value"]
    assert registry.subjects["a/b-value"] == [1]
    wider = record_type("sensor STRING NOT NULL, pressure DOUBLE NOT NULL")
    with pytest.raises(BindingError, match=r"refuses the schema .* 'a/b-value' \(Schema is incompatible"):
        AvroFormat(wider, client(registry)).registered("a/b-value")


def test_a_missing_library_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        BindingError, match=r"needs fastavro\. Install it with: pip install 'penstock\[avro\]'"
    ):
        check_installed("readings")


def test_a_name_that_avro_cannot_have_is_refused() -> None:
    with pytest.raises(SchemaError, match="'größe' is not a valid name in Avro"):
        schema_text(record_type(dataclasses.make_dataclass("R", [("größe", int)])))


def test_the_registry_is_asked_once_for_a_schema(registry: RegistryServer) -> None:
    number = registry.register("t-value", READING)
    raw = column(message(number, READING, {"sensor": "a", "celsius": 1.0}))
    kept = AvroFormat(record_type(Reading), get_client("readings", RegistryBinding(registry.url)))
    for _ in range(3):
        assert len(pickle.loads(pickle.dumps(kept)).decode(raw).batch) == 1
    assert registry.asked == [f"GET /schemas/ids/{number}"]


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of clients of registries, which are all that moves their clock; they give up after two seconds."""
    pauses: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(registry_client, "time", clock)
    monkeypatch.setattr(registry_client, "_PATIENCE_S", 2.0)
    return pauses


TROUBLE = {
    "login": (401, {"error_code": 401, "message": "Unauthorized"}),
    "rights": (403, {"error_code": 403, "message": "Forbidden"}),
    "too much": (429, {"message": "slow down"}),
    "failure": (500, {"error_code": 50001, "message": "Error in the backend data store"}),
    "proxy": (502, "<html>"),
    "page": (200, "be right back"),
    "late": (404, {"error_code": 40403, "message": "Schema not found"}),
}


@pytest.mark.usefixtures("slept_s")
@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_registry_that_has_trouble_is_asked_again(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: str
) -> None:
    """Its messages are no dead letters, and the run goes on; the login may be one that is being replaced."""
    password = tmp_path / "password"
    password.write_text("s3cret")
    number, answer, asked = registry.register("t-value", READING), registry.answer, list[str]()

    def reply(method: str, path: str, body: Any) -> tuple[int, Any]:
        asked.append(path)
        # A schema that is not there is doubted once.
        return (
            TROUBLE[trouble] if len(asked) < (2 if trouble == "late" else 3) else answer(method, path, body)
        )

    monkeypatch.setattr(registry, "answer", reply)
    asking = client(registry, user="me", password=f"file:{password}")
    raw = column(message(number, READING, {"sensor": "a", "celsius": 1.0}))
    assert len(AvroFormat(record_type(Reading), asking).decode(raw).batch) == 1


def test_ids_of_no_schema_do_not_cost_a_pause_each(registry: RegistryServer, slept_s: list[float]) -> None:
    """Only the first one does, in a minute."""
    raw = column(*(struct.pack(">bI", 0, 1000 + number) for number in range(5)))
    assert len(AvroFormat(record_type(Reading), client(registry)).decode(raw).bad) == 5
    assert len(slept_s) == 1
    assert len(registry.asked) == 6


def test_an_answer_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a part of it comes now and then."""
    monkeypatch.setattr(registry_client, "_TIMEOUT_S", 0.3)

    def drip(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)

    with answering(drip) as port, pytest.raises(ExternalSystemError, match=r"has not ended after 0\.3 s"):
        RegistryClient("readings", RegistryBinding(f"http://127.0.0.1:{port}")).check()


@pytest.mark.usefixtures("slept_s")
def test_a_registry_that_is_away_is_no_dead_letter() -> None:
    with running_registry() as registry:
        number = registry.register("t-value", READING)
    raw = column(message(number, READING, {"sensor": "a", "celsius": 1.0}))
    with pytest.raises(ExternalSystemError, match=rf"registry {registry.url} cannot be reached .* continues"):
        AvroFormat(record_type(Reading), client(registry)).decode(raw)


@pytest.mark.usefixtures("slept_s")
@pytest.mark.parametrize("content", [{"error_code": 404, "message": "HTTP 404 Not Found"}, "no such backend"])
def test_a_404_that_is_not_the_registry_s_is_no_dead_letter(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    """A proxy answers so while the registry behind it is away, and all messages would be dead letters."""
    monkeypatch.setattr(registry, "answer", lambda *_: (404, content))
    raw = column(message(7, READING, {"sensor": "a", "celsius": 1.0}))
    with pytest.raises(ExternalSystemError, match=r"is no schema registry, or not at this path \(404: "):
        AvroFormat(record_type(Reading), client(registry)).decode(raw)


@pytest.mark.usefixtures("slept_s")
def test_what_is_no_registry_is_named(registry: RegistryServer) -> None:
    registry.schemas[1] = {"text": "no schema"}
    with pytest.raises(ExternalSystemError, match="is not a schema registry with Confluent's API"):
        client(registry).schema(1)


def test_the_login_is_a_reference_that_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret")
    with running_registry(("me", "s3cret")) as registry:
        number = registry.register("t-value", READING)
        asking = client(registry, user="me", password="env:REGISTRY_PASSWORD")
        assert asking.schema(number).kind == "AVRO"
        with pytest.raises(BindingError, match=r"refuses the login \(401\)") as refused:
            client(registry, user="me", password="wrong-one").check()
    assert "wrong-one" not in str(refused.value)
    assert "wrong-one" not in repr(RegistryBinding("http://r", "me", "wrong-one"))


@dataclasses.dataclass
class Part:
    part_size: int
    count: int = 7
    note: str | None = None


@dataclasses.dataclass
class Machine:
    part: Part
    parts: list[Part]


def record(name: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of a record."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def test_names_and_defaults_within_nested_records(registry: RegistryServer) -> None:
    """As those of the fields themselves. The record could not be read in a step, so that a run failed for ever."""
    part = record("Part", partSize="int", more="string")
    schema = record("Machine", part=part, parts={"type": "array", "items": "Part"})
    number = registry.register("t-value", schema)
    value = {"partSize": 5, "more": "x"}
    found = AvroFormat(record_type(Machine), client(registry)).decode(
        column(message(number, schema, {"part": value, "parts": [value]}))
    )
    assert found.bad == []
    assert record_type(Machine).objects(found.batch) == [Machine(Part(5), [Part(5)])]


@pytest.mark.parametrize(
    ("kind", "ddl", "value"),
    [
        ("long", "a TIMESTAMP", 1_700_000_000_000),
        ("int", "a DATE", 19_000),
        ("double", "a INT", 1.5),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "a INT",
            decimal.Decimal("1.5"),
        ),
    ],
)
def test_a_value_of_another_kind_is_a_dead_letter(
    registry: RegistryServer, kind: Any, ddl: str, value: Any
) -> None:
    """A number is no time, since nothing says what it counts, and no whole number if it is none."""
    schema = record("R", a=kind)
    number = registry.register("t-value", schema)
    found = AvroFormat(record_type(ddl), client(registry)).decode(
        column(message(number, schema, {"a": value}))
    )
    assert len(found.batch) == 0
    assert "field 'a'" in found.bad[0][1]


@pytest.mark.parametrize("levels", [400, 100_000])
def test_a_message_nested_deep_does_not_end_the_process(registry: RegistryServer, levels: int) -> None:
    """The reader calls itself for each level, until the process has no stack left."""
    schema = record("R", n="int", tree=record("Node", left=["null", "Node"], right=["null", "Node"]))
    number = registry.register("t-value", schema)
    deep = struct.pack(">bI", 0, number) + b"\2" + b"\2" * levels + b"\0" * (levels + 2)
    flat = message(number, schema, {"n": 2, "tree": {"left": None, "right": None}})
    found = AvroFormat(record_type("n INT"), client(registry)).decode(column(deep, flat))
    wanted = [1, 2] if levels < 500 else [2]
    assert found.batch.column("n").to_pylist() == wanted
    assert [reason for _, reason in found.bad] == [
        "schema 1: the message is nested more than 1000 levels deep"
    ] * (2 - len(wanted))


def test_an_array_of_nothing_is_refused_also_by_its_name(registry: RegistryServer) -> None:
    """A few bytes can say that there are billions."""
    schema = record("R", e=record("E"), xs={"type": "array", "items": "E"}, n="int")
    number = registry.register("t-value", schema)
    found = AvroFormat(record_type("n INT"), client(registry)).decode(
        column(struct.pack(">bI", 0, number) + b"\xfe\xff\xff\xff\xff\x0f\0\2")
    )
    assert "an array whose items take no bytes" in found.bad[0][1]


def test_a_field_has_the_value_of_no_other_one(registry: RegistryServer) -> None:
    """A name that is there counts for one field; of two that match one, neither does."""
    schema = record("R", a_b="string")
    number = registry.register("t-value", schema)
    raw = column(message(number, schema, {"a_b": "x"}))
    found = AvroFormat(record_type("a_b STRING, ab STRING"), client(registry)).decode(raw)
    assert found.batch.to_pylist() == [{"a_b": "x", "ab": None}]
    both = record("R", a_b="string", aB="string")
    raw = column(message(registry.register("t-value", both), both, {"a_b": "x", "aB": "y"}))
    found = AvroFormat(record_type("ab STRING"), client(registry)).decode(raw)
    assert "'a_b' and 'aB' both match the field 'ab'" in found.bad[0][1]
