"""Flat JSON schemas are validated for all messages at once, with the records and bad rows of a validator of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.bindings.types import RegistryBinding
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.records.wire_formats import Decoded
from penstock.registries.framed_messages import HEADER, MAGIC
from penstock.registries.json_schema_format import JsonSchemaFormat
from penstock.registries.json_structs import structs_of
from penstock.registries.registry_client import RegisteredSchema, RegistryClient

HEAD = HEADER.pack(MAGIC, 1)
FLAT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Reading",
    "type": "object",
    "properties": {
        "s": {"type": "string", "minLength": 1},
        "n": {"type": "integer", "minimum": 0},
        "x": {"type": ["number", "null"], "exclusiveMaximum": 10},
    },
    "required": ["s"],
    "additionalProperties": False,
}


class OneSchema(RegistryClient):
    """A registry that has one schema."""

    def __init__(self, schema: Any) -> None:
        super().__init__("t", RegistryBinding("http://none"))
        self.text = json.dumps(schema)

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:  # as RegistryClient
        return RegisteredSchema(self.text, "JSON")


def decoded(kind: RecordType, schema: Any, bodies: list[bytes]) -> Decoded:
    raw = pa.array([b"before", *(HEAD + body for body in bodies)], pa.binary()).slice(1)
    return JsonSchemaFormat(kind, OneSchema(schema)).decode(raw)


LIMITS = st.integers(-3, 3) | st.sampled_from([0.5, 2.0, 2**53, 2**53 - 1])
PROPERTIES = st.one_of(
    st.just(True),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", ["string", "null"]])},
        optional={"minLength": st.integers(0, 3), "maxLength": st.integers(0, 3), "title": st.just("t")},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", ["null", "string"]]), "enum": st.just(["a", "bc"])}
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["boolean", ["null", "boolean"]])}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["number", "null"], ["integer", "null"]])},
        optional={
            "minimum": LIMITS,
            "maximum": LIMITS,
            "exclusiveMinimum": LIMITS,
            "exclusiveMaximum": LIMITS,
        },
    ),
)
VALUES = st.sampled_from(
    [
        *("1", "2", "-3", "0", "2.0", "0.5", "1e2", "true", "false", "null", '""', '"a"', '"bc"', '"abcd"'),
        *(
            '"\\u00e9\\u00e9"',
            '"\\ud83d\\ude00"',
            '"\\ud800"',
            "9007199254740993",
            "123456789012345678901234567890",
        ),
        *("1e400", "[]", '{"a":{}}', "nul", '"open', "-0"),
    ]
)
TYPES = st.sampled_from(["STRING", "BIGINT", "INT", "DOUBLE", "BOOLEAN"])
NAMES = ("a", "b", "c")


@st.composite
def cases(draw: st.DrawFn) -> tuple[RecordType, dict[str, Any], list[bytes]]:
    """Draw a record, a schema, and messages, of which some are odd JSON or none."""
    fields = [
        f"{name} {draw(TYPES)}{draw(st.sampled_from([' NOT NULL', '']))}"
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    ]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": draw(st.dictionaries(st.sampled_from(NAMES), PROPERTIES)),
        "required": draw(st.lists(st.sampled_from(NAMES), unique=True)),
        "additionalProperties": draw(st.booleans()),
    }
    pairs = st.tuples(st.sampled_from([*NAMES, *NAMES, "d"]), VALUES)
    bodies = []
    for chosen in draw(st.lists(st.lists(pairs, max_size=4), min_size=1, max_size=4)):
        body = "{" + ", ".join(f'"{name}":{value}' for name, value in chosen) + "}"
        around = draw(st.sampled_from(["{}"] * 6 + [" {}\n", "{}\n{}", "[{}]", "{}}}", "\n{}"]))
        bodies.append(around.replace("{}", body).replace("}}}", "}}").encode())
    if draw(st.integers(0, 9)) == 0:
        bodies.append(b'{"a":"\xff","d":"\xff"}')
    return record_type(", ".join(fields)), schema, bodies


@given(cases())
@examples(150)
def test_records_and_bad_rows_are_those_of_a_validator_of_single_messages(
    case: tuple[RecordType, dict[str, Any], list[bytes]],
) -> None:
    """The same schema with a condition that always holds is none of those that are done at once."""
    kind, schema, bodies = case
    other = {**schema, "allOf": [True]}
    assert structs_of(kind, other) is None
    found, expected = decoded(kind, schema, bodies), decoded(kind, other, bodies)
    assert found.batch.to_pylist() == expected.batch.to_pylist()
    assert (found.rows is None) == (expected.rows is None)
    assert found.rows is None or found.rows.tolist() == expected.rows.tolist()  # type: ignore[union-attr]
    assert list(found.bad) == list(expected.bad)


def test_messages_that_are_valid_are_decoded_at_once() -> None:
    """The types accept what is valid, and nothing else."""
    kind = record_type("s STRING NOT NULL, n BIGINT, x DOUBLE")
    structs = structs_of(kind, FLAT)
    assert structs is not None

    def of(*bodies: bytes) -> Any:
        batch = structs.decode(pa.array([HEAD + body for body in bodies], pa.binary()))
        return None if batch is None else batch.to_pylist()

    assert of(b'{"s":"a","n":1,"x":2.5}', b'{"s":"b", "x":null}', b'{"s":"c","n":3}') == [
        {"s": "a", "n": 1, "x": 2.5},
        {"s": "b", "n": None, "x": None},
        {"s": "c", "n": 3, "x": None},
    ]
    for wrong in (
        b'{"s":""}',
        b"{}",
        b'{"s":"a","n":-1}',
        b'{"s":"a","x":10}',
        b'{"s":"a","d":1}',
        b'{"s":1}',
    ):
        assert of(b'{"s":"a"}', wrong) is None, wrong


@dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise ValueError("13 is no number of a room")


class Limited(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=0)]


class Renamed(msgspec.Struct, rename="upper"):
    n: int


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("n BIGINT", {"patternProperties": {}}),
        ("n BIGINT", {"properties": {"n": {"$ref": "#/definitions/n"}}}),
        ("n BIGINT", {"properties": {"n": {"type": "integer", "multipleOf": 2}}}),
        ("n BIGINT", {"properties": {"n": {"type": "integer"}, "s": {"type": "string", "pattern": "a+"}}}),
        ("n BIGINT", {"properties": {"n": {"type": "integer"}, "s": {"type": "array"}}}),
        ("n BIGINT", {"additionalProperties": {"type": "string"}}),
        ("n BIGINT", {"$schema": "http://json-schema.org/draft-04/schema#"}),
        ("n ARRAY<BIGINT>", {}),
        ("n TIMESTAMP", {}),
        (Checked, {}),
        (Limited, {}),
        (Renamed, {}),
    ],
)
def test_other_schemas_and_records_are_left_to_the_validator(kind: Any, changed: dict[str, Any]) -> None:
    """Also those of which one message in a thousand needs what a type does not say."""
    schema = {**FLAT, "properties": {"n": {"type": "integer"}}, "required": []}
    assert structs_of(record_type("n BIGINT"), schema) is not None
    assert structs_of(record_type(kind), {**schema, **changed}) is None


def test_some_bad_messages_of_many_have_their_reasons() -> None:
    """They are found in ever smaller parts, and the others keep their order."""
    bodies = [b'{"s":"%d","n":%d}' % (row, row) for row in range(3000)]
    bodies[7], bodies[1500] = b'{"s":"","n":1}', b'{"s":"a","n":2'
    found = decoded(record_type("s STRING NOT NULL, n BIGINT"), FLAT, bodies)
    assert found.batch.column("n").to_pylist() == [row for row in range(3000) if row not in (7, 1500)]
    assert dict(found.bad)[7].startswith("schema 1: $.s: ")
    assert [row for row, _ in found.bad] == [7, 1500]


@pytest.mark.parametrize("kind", ["s STRING", "n BIGINT"])
def test_null_is_no_member_of_an_enumeration_of_texts(kind: str) -> None:
    """Even where the type of the property allows null, as for each other keyword."""
    schema = {"type": "object", "properties": {"s": {"type": ["string", "null"], "enum": ["a"]}}}
    assert [row for row, _ in decoded(record_type(kind), schema, [b'{"s":null}']).bad] == [0]
    assert decoded(record_type(kind), schema, [b'{"s":"a"}', b"{}"]).bad == []


@pytest.mark.parametrize(
    "properties",
    [
        {'a"b': {"type": "string"}},
        {"a\\b": {"type": "string"}},
        {"a\nb": {"type": "string"}},
        {"s": {"type": "string", "maxLength": 2**63}},
        {"s": {"type": "string", "maxLength": 2**70}},
    ],
)
def test_what_no_type_can_have_is_left_to_the_validator(properties: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": properties}
    kind = record_type("n BIGINT")
    assert structs_of(kind, schema) is None
    assert decoded(kind, schema, [b'{"n":1}']).batch.to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("depth", "changed"),
    [
        (100_000, {}),
        (100_000, {"required": ["d"]}),
        (100_000, {"allOf": [True]}),
        (100_000, {"$id": "http://h/n"}),
        (300, {"properties": {"d": {"type": "integer"}}}),
    ],
)
def test_a_message_that_is_nested_too_deep_is_bad(depth: int, changed: dict[str, Any]) -> None:
    """Whether it cannot be decoded, or what is wrong with it cannot be told."""
    deep = b'{"n":1,"d":' + b"[" * depth + b"]" * depth + b"}"
    found = decoded(
        record_type("n BIGINT"), {"type": "object", **changed}, [b'{"n":1,"d":1}', deep, b'{"n":2,"d":2}']
    )
    assert found.batch.to_pylist() == [{"n": 1}, {"n": 2}]
    assert [row for row, _ in found.bad] == [1]
    assert "ecursion" in found.bad[0][1]
