"""Nested values: records within records keep their defaults, and what user code cannot read is found before."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.operators.record_blocks import raw_bytes
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of


class Unit(enum.Enum):
    C = "c"
    F = "f"


@dataclasses.dataclass
class Part:
    number: int
    size: int = 7
    note: str | None = "none yet"
    words: list[str] = dataclasses.field(default_factory=list)


class Brief(msgspec.Struct, omit_defaults=True):
    number: int
    size: int = 7


@dataclasses.dataclass
class Whole:
    part: Part
    parts: list[Part]
    by_name: dict[str, Part]
    brief: Brief = dataclasses.field(default_factory=lambda: Brief(1))
    maybe: Part | None = None


@dataclasses.dataclass
class Measured:
    unit: Unit
    at: dt.datetime
    values: list[int]


@dataclasses.dataclass
class Outer:
    inner: Measured | None


def test_defaults_within_nested_records_are_kept() -> None:
    """msgspec leaves the defaults of dataclasses to the class, so that they were null, or the record unreadable."""
    kind = record_type(Whole)
    text = b'{"part": {"number": 1}, "parts": [{"number": 2, "size": 3}], "by_name": {"k": {"number": 4}}}'
    found = format_of("json", kind).decode(pa.array([text, text]))
    part = Part(1)
    whole = Whole(part, [Part(2, 3)], {"k": Part(4)}, Brief(1))
    assert found.bad == []
    assert kind.objects(found.batch) == [whole, whole]
    assert kind.objects(kind.batch([whole])) == [whole]


@pytest.mark.parametrize(("option", "value"), [("rename", "camel"), ("array_like", True)])
def test_structs_within_records_have_the_names_of_their_fields(option: str, value: Any) -> None:
    """Others would be null in every record."""
    inner = msgspec.defstruct("Inner", [("room_id", int)], **{option: value})
    outer = msgspec.defstruct("Outer", [("inner", inner)])
    with pytest.raises(SchemaError, match=rf"Outer\.inner: the Struct Inner within records has {option}="):
        record_type(outer)


UNREADABLE = [
    ({"unit": "k", "at": 0, "values": [1]}, "Invalid enum value 'k'"),
    ({"unit": "c", "at": 2**62, "values": [1]}, "out of range"),
    ({"unit": "c", "at": 0, "values": [1, None]}, "got `null`"),
]
COLUMNS = pa.struct(
    [("unit", pa.string()), ("at", pa.timestamp("us", "UTC")), ("values", pa.list_(pa.int64()))]
)


@pytest.mark.parametrize(("value", "why"), UNREADABLE)
def test_columns_that_cannot_be_read_are_found(value: dict[str, Any], why: str) -> None:
    """Those of files and messages have more than a class allows; a step would fail on them for ever."""
    kind = record_type(Outer)
    good = {"unit": "c", "at": 5, "values": [1]}
    column = pa.array([good, value, None], COLUMNS).cast(kind.schema.field("inner").type)
    batch = pa.RecordBatch.from_arrays([column], schema=kind.schema)
    reasons = kind.missing(batch, allow_nan=False, unchecked=True)
    assert reasons is not None
    assert (reasons[0], reasons[2]) == ("", "")
    assert reasons[1].startswith("field 'inner' cannot be read: ")
    assert why in reasons[1]
    # It becomes a dead letter, even if Python does not have its values.
    assert raw_bytes(None, batch, 1, kind).startswith(b'{"inner":{"unit":')
    readable = batch.filter(pa.array(reasons == ""))
    assert kind.missing(readable, allow_nan=False, unchecked=True) is None


def test_keys_that_come_twice_in_a_map_do_not_stop_a_run() -> None:
    """The last one counts, as in protobuf."""
    kind = record_type("m MAP<STRING, INT>")
    column = pa.array([[("k", 1), ("k", 2)]], kind.schema.field("m").type)
    with pytest.warns(UserWarning, match="already encountered"):
        assert kind.objects(pa.record_batch([column], schema=kind.schema))[0].m == {"k": 2}


@pytest.mark.parametrize(
    ("ddl", "values", "why"),
    [
        ("a INT", [1, 1.5], r"1\.5 is not a whole number"),
        ("a BIGINT", [None] * 60 + [2.5], r"2\.5 is not a whole number"),
        ("a TIMESTAMP", [1_700_000_000_000], "1700000000000 is a number, not a time"),
        ("a TIMESTAMP", np.array([5]), "5 is a number, not a time"),
        ("a DATE", [19_000.0], r"19000\.0 is a number, not a date"),
        ("a FLOAT", [1.0, 1e300], r"1e\+300 is too large for 32 bits"),
    ],
)
def test_a_value_that_a_column_would_change_is_refused(ddl: str, values: Any, why: str) -> None:
    """Arrow would drop fractions, and take numbers for microseconds and days."""
    with pytest.raises(SchemaError, match=rf"field 'a' \(.*\) cannot hold a value: {why}"):
        record_type(ddl).fields[0].to_arrow(values)


def test_values_that_stay_what_they_are_are_taken() -> None:
    for ddl, values in (
        ("a INT", [1.0, None, np.float64(2)]),
        ("a FLOAT", [1.1, float("inf"), None]),
        ("a DATE", [dt.date(2024, 1, 1), None]),
    ):
        assert len(record_type(ddl).fields[0].to_arrow(values)) == len(values)
