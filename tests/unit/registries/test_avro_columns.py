"""Flat records of Avro are decoded field by field, with the records and bad rows of a decoder of single messages."""

from __future__ import annotations

import datetime as dt
import enum
import io
import json
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.bindings.types import RegistryBinding
from penstock.records.schemas import record_type
from penstock.registries.avro_columns import columns_of
from penstock.registries.avro_format import AvroFormat
from penstock.registries.framed_messages import HEADER, MAGIC
from penstock.registries.registry_client import RegisteredSchema, RegistryClient

KINDS: dict[str, tuple[Any, str, st.SearchStrategy[Any]]] = {
    "i": ("int", "INT", st.integers(-(2**31), 2**31 - 1)),
    "n": ("long", "BIGINT", st.integers(-(2**63), 2**63 - 1)),
    "w": ("int", "BIGINT", st.integers(-(2**31), 2**31 - 1)),
    "f": ("float", "FLOAT", st.floats(width=32, allow_nan=False)),
    "d": ("double", "DOUBLE", st.floats(allow_nan=False)),
    "g": ("float", "DOUBLE", st.floats(width=32, allow_nan=False)),
    "s": ("string", "STRING", st.text(max_size=200)),
    "y": ("bytes", "BINARY", st.binary(max_size=200)),
    "b": ("boolean", "BOOLEAN", st.booleans()),
    "e": ({"type": "enum", "name": "E", "symbols": ["A", "BB"]}, "STRING", st.sampled_from(["A", "BB"])),
    "t": (
        {"type": "long", "logicalType": "timestamp-micros"},
        "TIMESTAMP",
        st.integers(-(2**52), 2**52).map(
            lambda us: dt.datetime.fromtimestamp(0, dt.UTC) + us * dt.timedelta(microseconds=1)
        ),
    ),
    "q": (
        {"type": "int", "logicalType": "date"},
        "DATE",
        st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    ),
}
HEAD = HEADER.pack(MAGIC, 1)


class OneSchema(RegistryClient):
    """A registry that has one schema."""

    def __init__(self, schema: Any) -> None:
        super().__init__("t", RegistryBinding("http://none"))
        self.text = json.dumps(schema)

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:  # as RegistryClient
        return RegisteredSchema(self.text, "AVRO")


def encoded(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def single(schema: Any, body: bytes) -> dict[str, Any] | None:
    """Return the record of one message; None when it does not fit the schema."""
    stream = io.BytesIO(body)
    try:
        record: Any = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # whatever fastavro raises for bytes that are no record
        return None
    return record if stream.tell() == len(body) else None


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes], str]:
    """Draw a schema, messages of which some are damaged, and the fields that are wanted."""
    chosen = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    fields, values = [], {}
    for name in chosen:
        kind, _, strategy = KINDS[name]
        order = draw(st.sampled_from([[kind], ["null", kind], [kind, "null"]]))
        fields.append({"name": name, "type": order if len(order) > 1 else kind})
        values[name] = strategy | st.none() if len(order) > 1 else strategy
    schema = {"type": "record", "name": "R", "fields": fields}
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    bodies = []
    for record in draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=8)):
        body = encoded(parsed, record)
        damage = draw(st.sampled_from(["none", "none", "none", "cut", "longer", "changed"]))
        if damage == "cut":
            body = body[: draw(st.integers(0, len(body)))]
        elif damage == "longer":
            body += draw(st.binary(min_size=1, max_size=12))
        elif damage == "changed" and body:
            at = draw(st.integers(0, len(body) - 1))
            body = body[:at] + draw(st.binary(min_size=1, max_size=12)) + body[at + 1 :]
        bodies.append(body)
    wanted = draw(st.lists(st.sampled_from(chosen), min_size=1, unique=True))
    return schema, bodies, ", ".join(f"{name} {KINDS[name][1]}" for name in wanted)


@given(cases())
@examples(100)
def test_records_and_bad_rows_are_those_of_a_decoder_of_single_messages(
    case: tuple[dict[str, Any], list[bytes], str],
) -> None:
    """Also damaged messages: the same rows are bad, and the others have the same values."""
    schema, bodies, fields = case
    kind = record_type(fields)
    raw = pa.array([b"before", *(HEAD + body for body in bodies)], pa.binary()).slice(1)
    found = AvroFormat(kind, OneSchema(schema), allow_nan=True).decode(raw)
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    expected = {}
    for row, body in enumerate(bodies):
        if (record := single(parsed, body)) is None:
            continue
        try:
            columns = [field.to_arrow([record[field.name]]) for field in kind.fields]
        except Exception:  # a damaged value may be one that the field cannot hold
            continue
        expected[row] = pa.RecordBatch.from_arrays(columns, schema=kind.schema)
    rows = list(range(len(bodies))) if found.rows is None else found.rows.tolist()
    assert rows == list(expected)
    assert [row for row, _ in found.bad] == [row for row in range(len(bodies)) if row not in expected]
    # As text, for which NaN is like NaN.
    assert str(found.batch.to_pylist()) == str([batch.to_pylist()[0] for batch in expected.values()])


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "string", "logicalType": "uuid"},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        ["null", "int", "string"],
        {"type": "record", "name": "Inner", "fields": []},
    ],
)
def test_records_that_are_not_flat_are_decoded_one_by_one(kind: Any) -> None:
    """A field of such a type is enough, whether the record takes it or not."""
    fields = [{"name": "n", "type": "long"}, {"name": "other", "type": kind}]
    assert columns_of({"type": "record", "name": "R", "fields": fields[:1]}, ["n"]) is not None
    assert columns_of({"type": "record", "name": "R", "fields": fields}, ["n"]) is None


class Color(enum.Enum):
    RED = "R"
    BLUE = "B"


@dataclass
class Painted:
    color: Color
    number: int = 7


def test_an_enumeration_of_the_record_has_its_members_only() -> None:
    """A value that the class does not have is a bad record with the reason, as for other formats."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "color", "type": "string"}]}
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    raw = pa.array([HEAD + encoded(parsed, {"color": color}) for color in "RXB"], pa.binary())
    found = AvroFormat(record_type(Painted), OneSchema(schema)).decode(raw)
    assert found.batch.to_pylist() == [{"color": "R", "number": 7}, {"color": "B", "number": 7}]
    ((row, reason),) = found.bad
    assert row == 1
    assert "'X' is not a valid Color" in reason


def test_one_message_that_is_no_text_leaves_the_others() -> None:
    """A text that is not UTF-8 is one bad row of a large batch."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}
    bodies = [b"\x04ab"] * 5000
    bodies[4321] = b"\x04\xff\xfe"
    raw = pa.array([HEAD + body for body in bodies], pa.binary())
    found = AvroFormat(record_type("s STRING"), OneSchema(schema)).decode(raw)
    assert len(found.batch) == 4999
    assert [row for row, _ in found.bad] == [4321]


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ({"type": "int", "logicalType": "date"}, -719_162, 2_932_896),
        ({"type": "long", "logicalType": "timestamp-millis"}, -62_135_596_800_000, 253_402_300_799_999),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            -62_135_596_800_000_000,
            253_402_300_799_999_999,
        ),
    ],
)
def test_a_day_that_python_does_not_have_is_a_bad_record(kind: Any, first: int, last: int) -> None:
    """Also where the record does not take the field, so that a message never depends on others beside it."""
    fields = [{"name": "t", "type": kind}, {"name": "n", "type": "long"}]
    numbers = [first - 1, first, last, last + 1]
    parsed = fastavro.parse_schema(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in "tn"]}
    )
    raw = pa.array([HEAD + encoded(parsed, {"t": number, "n": 1}) for number in numbers], pa.binary())
    schema = {"type": "record", "name": "R", "fields": fields}
    assert columns_of(fastavro.parse_schema(json.loads(json.dumps(schema))), ["n"]) is not None
    found = AvroFormat(record_type("n BIGINT"), OneSchema(schema)).decode(raw)
    assert [row for row, _ in found.bad] == [0, 3]
    assert found.batch.to_pylist() == [{"n": 1}] * 2


def test_reasons_are_the_same_in_each_run() -> None:
    """They go to dead letters, which a replay must not change."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "boolean"}]}
    found = AvroFormat(record_type("b BOOLEAN"), OneSchema(schema)).decode(pa.array([HEAD], pa.binary()))
    assert found.bad == [(0, "schema 1: the message ends within what its schema describes")]
