"""JSON Schema with a registry: messages are what the schema that they name allows, and the fields of a record type."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import pickle
import struct
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from registry_server import RegistryServer, running_registry

from penstock.bindings.types import RegistryBinding
from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.records.wire_formats import JsonFormat
from penstock.registries.json_schema_format import JsonSchemaFormat, check_installed
from penstock.registries.json_schemas import schema_text
from penstock.registries.registry_client import RegistryClient


@dataclasses.dataclass
class Reading:
    sensor: str
    celsius: float
    room: str = "hall"
    note: str | None = None


@dataclasses.dataclass
class Counted:
    sensor: str
    count: int
    celsius: float | None = None
    good: bool = True
    room: str = "hall"


@dataclasses.dataclass
class Tagged:
    sensor: str
    count: int | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


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
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "sensor": {"type": "string", "minLength": 1},
        "celsius": {"type": "number", "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["sensor"],
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running


@pytest.fixture(scope="module")
def asking() -> Iterator[tuple[RegistryClient, int]]:
    """A client for all examples of a property, which asks once, and the id of READING."""
    with running_registry() as running:
        yield client(running), running.register("t-value", READING, schemaType="JSON")


def client(registry: RegistryServer) -> RegistryClient:
    return RegistryClient("readings", RegistryBinding(registry.url))


def reader(registry: RegistryServer, schema: Any = Reading) -> JsonSchemaFormat:
    return JsonSchemaFormat(record_type(schema), client(registry))


def message(schema_id: int, value: Any) -> bytes:
    """Return a message as Confluent's serializer writes it."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">bI", 0, schema_id) + body


def column(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_messages_of_several_schemas_are_decoded_in_their_order(registry: RegistryServer) -> None:
    """A field added, one that is gone, and a whole number for a float, in one batch."""
    newer = {
        "type": "object",
        "properties": {"firmware": {"type": "integer"}, "celsius": {"type": "integer"}, "note": {}},
        "required": ["firmware"],
    }
    old = registry.register("t-value", READING, schemaType="JSON")
    new = registry.register("t-value", newer, schemaType="JSON")
    found = reader(registry).decode(
        column(
            message(new, {"firmware": 1, "celsius": 20, "sensor": "a", "note": "x"}),
            message(old, {"sensor": "b", "celsius": 20.5}),
            message(new, b'{\n  "firmware": 1,\n  "celsius": 21, "sensor": "c"\n}'),
        )
    )
    assert (found.rows, found.bad) == (None, [])
    assert found.batch.to_pylist() == [
        {"sensor": "a", "celsius": 20.0, "room": "hall", "note": "x"},
        {"sensor": "b", "celsius": 20.5, "room": "hall", "note": None},
        {"sensor": "c", "celsius": 21.0, "room": "hall", "note": None},
    ]


def test_what_the_schema_does_not_allow_is_bad_with_its_path(registry: RegistryServer) -> None:
    number = registry.register("t-value", READING, schemaType="JSON")
    good = message(number, {"sensor": "a", "celsius": 1.5})
    values = [
        good,
        message(number, {"sensor": "a", "celsius": 200}),
        message(number, {"sensor": "a", "celsius": 1, "tags": ["x", 7]}),
        message(number, {"celsius": 1.5}),
        message(number, {"sensor": "a", "celsius": "warm"}),
        message(number, {"sensor": "a"}),
        message(number, b"{"),
        message(number, [1]),
        b'{"sensor":"a","celsius":1.5}',
        None,
        message(99, {}),
        good,
    ]
    found = reader(registry).decode(column(*values))
    assert found.rows is not None
    assert found.rows.tolist() == [0, 11]
    reasons = dict(found.bad)
    assert sorted(reasons) == list(range(1, 11))
    assert reasons[1] == f"schema {number}: $.celsius: 200 is greater than the maximum of 100"
    assert reasons[2] == f'schema {number}: $.tags[1]: 7 is not of type "string"'
    assert "sensor" in reasons[3]
    assert "$.celsius" in reasons[4]
    assert "celsius" in reasons[5]
    assert reasons[8].startswith("the message does not begin with a zero")
    assert "has no schema 99" in reasons[10]


def test_a_schema_may_refer_to_others_and_to_nothing_else(registry: RegistryServer) -> None:
    registry.register("place", {"type": "string", "minLength": 2}, schemaType="JSON")
    room = {"type": "object", "properties": {"place": {"$ref": "place.json"}}}
    registry.register(
        "room",
        room,
        schemaType="JSON",
        references=[{"name": "place.json", "subject": "place", "version": 1}],
    )
    whole = {
        "type": "object",
        "properties": {"room": {"$ref": "room.json"}, "n": {"$ref": "#/definitions/n"}},
    }
    whole["definitions"] = {"n": {"type": "integer"}}
    reference = [{"name": "room.json", "subject": "room", "version": 1}]
    for schema in (whole, {**whole, "$id": "http://plant.example/whole.json"}):
        number = registry.register("t-value", schema, schemaType="JSON", references=reference)
        found = reader(registry, "n BIGINT, room STRUCT<place: STRING>").decode(
            column(
                message(number, {"n": 1, "room": {"place": "hall"}}),
                message(number, {"n": 1, "room": {"place": "h"}}),
            )
        )
        assert found.batch.to_pylist() == [{"n": 1, "room": {"place": "hall"}}]
        assert found.bad == [(1, f'schema {number}: $.room.place: "h" is shorter than 2 characters')]
    alone = registry.register("u-value", whole, schemaType="JSON")
    found = reader(registry, "n BIGINT").decode(column(message(alone, {"n": 1})))
    assert "not among the references of the schema in the registry" in found.bad[0][1]
    assert not [one for one in registry.asked if "room.json" in one]


@pytest.mark.parametrize("text", ["{", '{"type": "nothing"}', '{"pattern": "("}', '"x"', "7"])
def test_what_is_no_schema_makes_its_messages_bad(registry: RegistryServer, text: str) -> None:
    number = registry.register("t-value", text, schemaType="JSON")
    found = reader(registry).decode(column(message(number, {"sensor": "a", "celsius": 1})))
    assert len(found.batch) == 0
    assert f"the schema {number} of the registry cannot be used" in found.bad[0][1]


def test_schemas_of_other_types_are_named(registry: RegistryServer) -> None:
    number = registry.register("t-value", READING)
    found = reader(registry).decode(column(message(number, {})))
    assert "it is of type AVRO, not JSON" in found.bad[0][1]


def everything(number: int = 1) -> Everything:
    return Everything(
        number,
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


def test_what_is_encoded_is_valid_and_decodes_to_the_same(registry: RegistryServer) -> None:
    kind = record_type(Everything)
    batch = kind.batch([everything(), dataclasses.replace(everything(2), b=None)])
    sink = JsonSchemaFormat(kind, client(registry)).registered("t-value")
    raw = pickle.loads(pickle.dumps(sink)).encode(batch)
    assert registry.asked == ["POST /subjects/t-value/versions"]
    assert registry.schemas[1]["schemaType"] == "JSON"
    schema = json.loads(registry.schemas[1]["schema"])
    for value in raw.to_pylist():
        assert value[:5] == struct.pack(">bI", 0, 1)
        assert list(jsonschema_rs.Draft7Validator(schema).iter_errors(json.loads(value[5:]))) == []
    found = JsonSchemaFormat(kind, client(registry)).decode(raw)
    assert found.bad == []
    assert found.batch.equals(batch)


def test_a_registry_that_refuses_a_schema_says_why(registry: RegistryServer) -> None:
    JsonSchemaFormat(record_type("a BIGINT"), client(registry)).registered("t-value")
    optional = JsonSchemaFormat(record_type("a BIGINT, b STRING"), client(registry))
    assert optional.registered("t-value") is not None
    with pytest.raises(BindingError, match="REQUIRED_PROPERTY_ADDED"):
        JsonSchemaFormat(record_type("a BIGINT, c STRING NOT NULL"), client(registry)).registered("t-value")


def test_a_missing_library_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(BindingError, match=r"needs jsonschema-rs\. Install it .* 'penstock\[json-schema\]'"):
        check_installed("readings")


SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-200, 200)
    | st.sampled_from([2**63, 2**64, -(2**70), 1.0, -0.0, 1e300])
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
)
VALUES = st.dictionaries(
    st.sampled_from(["sensor", "celsius", "room", "note", "tags", "count", "good"]),
    SCALAR | st.lists(SCALAR, max_size=2),
    max_size=5,
)


@examples(60)
@given(
    st.sampled_from([Reading, Counted, Tagged]),
    st.lists(
        VALUES
        | VALUES.map(lambda value: {"sensor": "a", "count": 1, **value})
        | SCALAR
        | st.binary(max_size=3),
        max_size=8,
    ),
)
def test_good_are_those_that_are_valid_and_fit_the_record(
    asking: tuple[RegistryClient, int], schema: type, values: list[Any]
) -> None:
    """A message is good if the validator and format=json accept it alone; its record is then that of format=json."""
    kind = record_type(schema)
    known, number = asking
    bodies = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    found = JsonSchemaFormat(kind, known).decode(column(*[message(number, body) for body in bodies]))
    validator = jsonschema_rs.Draft7Validator(READING)
    expected = []
    for row, body in enumerate(bodies):
        alone = JsonFormat(kind, allow_nan=False).decode(column(body))
        if len(alone.batch) and validator.is_valid(json.loads(body)):
            expected.append((row, alone.batch.to_pylist()[0]))
    rows = list(range(len(values))) if found.rows is None else found.rows.tolist()
    assert list(zip(rows, found.batch.to_pylist(), strict=True)) == expected
    assert sorted([*rows, *(row for row, _ in found.bad)]) == list(range(len(values)))


def test_the_schema_of_a_record_type() -> None:
    found = json.loads(schema_text(record_type(Reading)))
    assert found == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Reading",
        "type": "object",
        "properties": {
            "sensor": {"type": "string"},
            "celsius": {"type": "number"},
            "room": {"type": "string"},
            "note": {"type": ["string", "null"]},
        },
        "additionalProperties": False,
        "required": ["sensor", "celsius", "room"],
    }
