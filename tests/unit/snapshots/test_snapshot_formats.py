"""Every format gives back exactly what was written, and says where a row does not fit."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_tables import all_plain, batches, plain, schemas

from penstock.snapshots import text_rows
from penstock.snapshots.arrow_schemas import check_schema, columns_of, schema_of
from penstock.snapshots.table_formats import FORMATS, decode, encode


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_every_value_comes_back_to_the_bit(name: str, data: st.DataObject) -> None:
    """For any schema and any values, however the rows are batched; with the same bytes each time."""
    batch = data.draw(batches())
    cut = data.draw(st.integers(0, len(batch)))
    whole = encode([batch], batch.schema, name)
    assert all_plain(decode(whole, batch.schema, name)) == plain(batch)
    pieces = [batch.slice(0, cut), batch.slice(cut)]
    assert all_plain(decode(encode(pieces, batch.schema, name), batch.schema, name)) == plain(batch)
    assert encode(pieces, batch.schema, name) == whole
    for found in decode(whole, batch.schema, name):
        assert found.schema.equals(batch.schema)
        found.validate(full=True)


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_files_are_decoded_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows and of bytes, however large rows are."""
    monkeypatch.setattr(text_rows, "_PART_BYTES", 100)
    batch = pa.record_batch({"key": range(50), "text": ["x\n" * (n % 7) * 20 for n in range(50)]})
    data = encode([batch], batch.schema, name)
    found = list(decode(data, batch.schema, name))
    assert len(found) > 20
    assert all_plain(iter(found)) == plain(batch)


def test_text_formats_look_as_documented() -> None:
    """What needs quotes has them, null is nothing, and nested values are JSON."""
    inner = pa.struct([pa.field("a", pa.float32(), nullable=False), pa.field("b", pa.binary())])
    schema = pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("value", inner, nullable=False),
            pa.field("maybe", inner),
            pa.field("tags", pa.map_(pa.string(), pa.list_(pa.float64()))),
            pa.field("at", pa.timestamp("ms", "Europe/Berlin")),
            pa.field("price", pa.decimal128(10, 2)),
        ]
    )
    values = [
        {
            "key": 'a "b"',
            "value": {"a": 0.1, "b": b"\xff"},
            "maybe": {"a": float("-inf"), "b": None},
            "tags": [("x", [1.5, None, float("nan")])],
            "at": dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC),
            "price": decimal.Decimal("9.90"),
        },
        {"key": "", "value": {"a": -0.0, "b": b""}},
    ]
    batch = pa.RecordBatch.from_pylist(values, schema=schema)
    first = (
        '"a ""b""",0.1,/w==,"{""a"":""-Infinity"",""b"":null}","{""x"":[1.5,null,""NaN""]}",'
        "2024-01-31T12:00:00.000Z,9.90"
    )
    assert bytes(encode([batch], schema, "csv")).decode().splitlines() == [
        "key,value.a,value.b,maybe,tags,at,price",
        first,
        '"",-0.0,"",,,,',
    ]
    first = (
        '{"key":"a \\"b\\"","value":{"a":0.1,"b":"/w=="},"maybe":{"a":"-Infinity","b":null},'
        '"tags":{"x":[1.5,null,"NaN"]},"at":"2024-01-31T12:00:00.000Z","price":"9.90"}'
    )
    assert bytes(encode([batch], schema, "jsonl")).decode().splitlines() == [
        first,
        '{"key":"","value":{"a":-0.0,"b":""},"maybe":null,"tags":null,"at":null,"price":null}',
    ]


def test_dots_in_names_do_not_meet_those_of_structs() -> None:
    """Then no struct becomes columns."""
    inner = pa.struct([pa.field("b", pa.int64())])
    schema = pa.schema([pa.field("a", inner, nullable=False), pa.field("a.b", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"a": {"b": 1}, "a.b": 2}], schema=schema)
    data = encode([batch], schema, "csv")
    assert bytes(data) == b'a,a.b\n"{""b"":1}",2\n'
    assert all_plain(decode(data, schema, "csv")) == plain(batch)


@given(schemas(depth=3))
def test_a_schema_comes_back_from_json(schema: pa.Schema) -> None:
    """With the same types, names and nullability."""
    assert schema_of(columns_of(schema)).equals(schema)
    assert check_schema(schema, "t").equals(schema)


def test_parquet_does_not_mind_what_stands_below_null_records() -> None:
    """Records read from text have nulls below those that are null, also where a field must have a value."""
    inner = pa.struct([pa.field("number", pa.int64(), nullable=False)])
    for kind in (inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.struct([pa.field("inner", inner)])):
        schema = pa.schema([pa.field("value", kind)])
        one: Any = {"number": 1}
        if pa.types.is_struct(kind) and kind != inner:
            one = {"inner": one}
        elif pa.types.is_map(kind):
            one = [("a", one), ("b", None)]
        elif pa.types.is_list(kind):
            one = [one, None]
        for held in ([one, None], [None], [None, one, None]):
            batch = pa.RecordBatch.from_arrays([pa.array(held, kind)], schema=schema)
            (read,) = decode(encode([batch], schema, "jsonl"), schema, "jsonl")
            for part in (read, read.slice(1)):
                again = list(decode(encode([part], schema, "parquet"), schema, "parquet"))
                assert [row for found in again for row in found.to_pylist()] == part.to_pylist()
