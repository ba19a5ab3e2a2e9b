"""Record types: one description for Python objects, columns and state; what does not fit is named."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import SchemaError
from penstock.records.schemas import record_type

sys.path.append(str(Path(__file__).parents[3] / "examples" / "temperature_control"))
import messages_pb2 as messages

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
FLOATS = st.floats(allow_nan=False)
TIMES = st.datetimes(timezones=st.just(dt.UTC))
DECIMALS = st.decimals(-(10**9), 10**9, places=6)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Inner:
    number: int
    words: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Everything:
    flag: bool
    count: int
    size: float
    name: str
    data: bytes
    at: dt.datetime
    day: dt.date
    price: decimal.Decimal
    level: Level
    side: Literal["left", "right"]
    inner: Inner
    tags: list[str]
    pairs: list[tuple[int, int]]
    table: dict[str, int]
    inners: list[Inner]
    old: Optional[int] = None  # noqa: UP045  # both forms are allowed
    note: str | None = None
    maybe: Inner | None = None
    maybe_level: Level | None = None


INNER = st.builds(Inner, INT64, st.dictionaries(TEXT, st.lists(INT64, max_size=2), max_size=2))
EVERYTHING = st.builds(
    Everything,
    st.booleans(),
    INT64,
    FLOATS,
    TEXT,
    st.binary(max_size=5),
    TIMES,
    st.dates(),
    DECIMALS,
    st.sampled_from(Level),
    st.sampled_from(["left", "right"]),
    INNER,
    st.lists(TEXT, max_size=3),
    st.lists(st.tuples(INT64, INT64), max_size=3),
    st.dictionaries(TEXT, INT64, max_size=3),
    st.lists(INNER, max_size=2),
    st.none() | INT64,
    st.none() | TEXT,
    st.none() | INNER,
    st.none() | st.sampled_from(Level),
)


@given(st.lists(EVERYTHING, max_size=6))
def test_dataclasses_come_back(objects: list[Everything]) -> None:
    """Objects to columns and back, for every type that a field may have."""
    kind = record_type(Everything)
    batch = kind.batch(objects)
    assert batch.schema == kind.schema
    assert kind.objects(batch) == objects
    assert kind.missing(batch, allow_nan=False) is None


class Point(msgspec.Struct):
    x: float
    label: str | None = None


@given(st.lists(st.builds(Point, FLOATS, st.none() | TEXT), max_size=6))
def test_structs_come_back(objects: list[Point]) -> None:
    """A msgspec Struct is as good as a dataclass."""
    kind = record_type(Point)
    assert kind.objects(kind.batch(objects)) == objects


DDL = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT NOT NULL, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY, j DATE, "
    "k TIMESTAMP, l DECIMAL(12, 3), m ARRAY<INT>, n MAP<STRING, DOUBLE>, o STRUCT<p: INT, q: ARRAY<STRING>>, `r` long"
)


def test_ddl_strings_become_records() -> None:
    """Every type of the language, nested ones included."""
    kind = record_type(DDL)
    assert kind.field_names == tuple("abcdefghijklmnor")
    assert [f.nullable for f in kind.fields] == [f.name != "d" for f in kind.fields]
    expected = {
        "b": pa.int8(),
        "f": pa.float32(),
        "l": pa.decimal128(12, 3),
        "m": pa.list_(pa.int32()),
        "n": pa.map_(pa.string(), pa.float64()),
        "r": pa.int64(),
    }
    assert {name: kind.field(name).arrow_type for name in expected} == expected
    inner = kind.field("o").python_type
    made = kind.python_class(True, 1, 2, 3, o=inner(5, ["x"]), n={}, m=[], l=decimal.Decimal("1.250"))
    assert kind.objects(kind.batch([made, made])) == [made, made]
    copy = pickle.loads(pickle.dumps(kind))
    assert copy == kind
    assert copy.objects(kind.batch([made]))[0].o.q == ["x"]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "is empty"),
        ("a", "has its end where 'a name' should be"),
        ("a INT b INT", "lacks a comma before 'b'"),
        ("a INTEGRAL", "unknown type 'integral'. Known types: array"),
        ("a ARRAY<INT", "its end where '>'"),
        ("a INT NOT", "its end where 'null'"),
        ("a INT, %", "cannot be read at"),
        ("a DECIMAL(x)", "'x' where a number should be"),
        ("a DECIMAL(99, 2)", "DECIMAL(99, 2); it may have 1 to 38 digits"),
        ("a STRUCT<>", "a STRUCT without fields"),
        ("`two words` INT", "a field 'two words'"),
        ("class INT", "a field 'class'"),
    ],
)
def test_wrong_ddl_is_refused(ddl: str, message: str) -> None:
    """The error shows the string and the place."""
    with pytest.raises(SchemaError) as caught:
        record_type(ddl)
    assert message in str(caught.value)


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@dataclass
class WithMixed:
    kind: Mixed


@dataclass
class WithObject:
    thing: object


@dataclass
class Uneven:
    pair: tuple[int, str]


@dataclass
class Node:
    children: list[Node]


@dataclass
class Empty:
    pass


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (WithMixed, "WithMixed.kind: the enumeration Mixed must have only str or only int values"),
        (WithObject, "WithObject.thing: the type <class 'object'> cannot be stored. Use bool, int"),
        (Uneven, "Uneven.pair: the type tuple[int, str] cannot be stored: the items of a tuple"),
        (Node, "Node.children: Node contains itself"),
        (Empty, "Empty has no fields"),
        (int, "int is not a schema. Give a dataclass"),
        (5, "5 is not a schema"),
    ],
)
def test_wrong_schemas_are_refused(schema: Any, message: str) -> None:
    """The error names the field and what is allowed."""
    with pytest.raises(SchemaError) as caught:
        record_type(schema)
    assert message in str(caught.value)


@dataclass
class Small:
    count: int
    name: str | None = None
    size: float = 0.0


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Small("one"), "field 'count' (int64) cannot hold a value"),  # type: ignore[arg-type]
        (Small(2**63), "field 'count' (int64) cannot hold a value"),
        (Small(None), "field 'count' has no value and is not optional"),  # type: ignore[arg-type]
        (Small(1, "\ud800"), "field 'name' (string) cannot hold a value"),
        (Point(1.0), "a record does not fit Small"),
    ],
)
def test_values_that_do_not_fit_are_named(record: Any, message: str) -> None:
    """The error names the field."""
    with pytest.raises(SchemaError) as caught:
        record_type(Small).batch([Small(1), record])
    assert message in str(caught.value)


def test_missing_values_and_nan_are_found_by_row() -> None:
    """Every row that is no valid record has a reason; infinities are fine."""
    kind = record_type(Small)
    nan, inf = float("nan"), float("inf")
    rows = [Small(1, size=1.0), Small(None), Small(2, size=nan), Small(3, size=inf), Small(4, size=-inf)]  # type: ignore[arg-type]
    batch = kind.batch(rows, check=False)
    found = kind.missing(batch, allow_nan=False)
    assert found is not None
    assert list(found) == ["", "field 'count' is missing or null", "field 'size' is NaN", "", ""]
    allowed = kind.missing(batch, allow_nan=True)
    assert allowed is not None
    assert list(allowed) == ["", "field 'count' is missing or null", "", "", ""]
    assert kind.missing(kind.batch(rows[3:]), allow_nan=False) is None


def test_protobuf_messages_become_records() -> None:
    """A generated class gives a record with its fields and protobuf's defaults; it travels without its module."""
    kind = record_type(messages.TemperatureControl)
    assert kind.field_names == ("sensorID", "desired", "upDelta", "downDelta")
    made = kind.python_class(sensorID=3, desired=20.5)
    assert (made.upDelta, made.downDelta) == (0.0, 0.0)
    copy = pickle.loads(pickle.dumps(kind))
    assert copy == kind
    assert kind.objects(copy.batch([made])) == [made]


def test_an_unknown_field_is_named() -> None:
    """The error lists the fields."""
    with pytest.raises(SchemaError, match="Small has no field 'nam'; its fields are count, name, size"):
        record_type(Small).field("nam")


class Shape(enum.Enum):
    ROUND = "round"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Sorted:
    kind: Rights


def test_flags_in_any_combination_come_back() -> None:
    """Also those that no member names."""
    records = [Sorted(Rights.READ | Rights.WRITE), Sorted(Rights.READ), Sorted(Rights(0))]
    kind = record_type(Sorted)
    assert kind.objects(kind.batch(records)) == records


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.datetimes(),
    TIMES,
    st.dates(),
    st.decimals(),
    st.sampled_from([*Level, *Shape, Rights.READ]),
    st.just("left"),
    st.builds(object),
)
ANYTHING = st.recursive(
    SCALARS | st.builds(Inner, SCALARS, SCALARS) | INNER,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.integers() | TEXT, inner, max_size=2),
    max_leaves=4,
)


@examples(60)
@given(values=st.lists(ANYTHING, min_size=1, max_size=3))
@pytest.mark.parametrize("name", record_type(Everything).field_names)
def test_what_is_taken_can_be_given_again(name: str, values: list[Any]) -> None:
    """Anything at all, in a field of any type, is either refused with the field's name or can be read."""
    field = record_type(Everything).field(name)
    try:
        column = field.to_arrow(values)
    except SchemaError as e:
        column, refused = None, str(e)
    if column is None:
        assert f"field {name!r}" in refused
    else:
        field.to_arrow(field.to_python(column))


def test_a_literal_holds_only_what_it_lists() -> None:
    """As an enumeration does."""
    side = record_type(Everything).field("side")
    with pytest.raises(SchemaError, match=r"field 'side' .* 'middle' is not one of 'left', 'right'"):
        side.to_arrow(["left", "middle"])
    with pytest.raises(SchemaError, match="field 'side' cannot hold a value: 'middle'"):
        side.check(pa.array(["left", "middle"]))
    assert side.to_arrow(["left", "right"]).to_pylist() == ["left", "right"]


def test_times_that_python_does_not_have_are_found() -> None:
    """Columns may hold years before 1 and after 9999."""
    kind = record_type("at TIMESTAMP, day DATE")
    long_ago, far = -(2**62), 2**62
    at = pa.array([0, long_ago, far, None, 0, 0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    day = pa.array([0, 0, 0, None, 2**30, -(2**30)], pa.int32()).cast(pa.date32())
    found = kind.missing(pa.RecordBatch.from_arrays([at, day], schema=kind.schema), allow_nan=False)
    assert found is not None
    beyond = "field {!r} lies beyond the years 1 to 9999".format
    assert list(found) == ["", beyond("at"), beyond("at"), "", beyond("day"), beyond("day")]
    edges = [
        kind.python_class(dt.datetime.min.replace(tzinfo=dt.UTC), dt.date.min),
        kind.python_class(dt.datetime.max.replace(tzinfo=dt.UTC), dt.date.max),
    ]
    batch = kind.batch(edges)
    assert kind.missing(batch, allow_nan=False) is None
    assert kind.objects(batch) == edges


@dataclass
class Labelled:
    labels: set[str]


def test_sets_are_kept_in_order() -> None:
    """Python orders sets of text differently in every process; columns hold them sorted."""
    kind = record_type(Labelled)
    batch = kind.batch([Labelled({"c", "a", "b"}), Labelled(set())])
    assert batch.column("labels").to_pylist() == [["a", "b", "c"], []]
    assert kind.objects(batch) == [Labelled({"a", "b", "c"}), Labelled(set())]
