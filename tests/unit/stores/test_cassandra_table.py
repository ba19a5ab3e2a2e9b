"""Cassandra tables: which columns take which fields, and the values that they get."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pytest

from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.stores.cassandra_table import Column, TableShape, fit_table, values_of

MILLISECOND = dt.timedelta(milliseconds=1)


def shape(**columns: str) -> TableShape:
    """A table whose first column is its key."""
    return TableShape(
        "the table", {name: Column(name, kind) for name, kind in columns.items()}, [next(iter(columns))]
    )


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("INT", "int"),
        ("INT", "bigint"),
        ("SMALLINT", "varint"),
        ("FLOAT", "double"),
        ("STRING", "uuid"),
        ("TIMESTAMP", "timestamp"),
        ("DECIMAL(9,2)", "decimal"),
        ("ARRAY<INT>", "frozen<list<bigint>>"),
        ("ARRAY<STRING>", "set<text>"),
        ("MAP<STRING, INT>", "map<text, int>"),
        ("MAP<STRING, INT>", "frozen<map<text, int>>"),
        ("STRUCT<a: INT>", "text"),
    ],
)
def test_a_column_takes_a_field(field: str, column: str) -> None:
    """Wider ones, too."""
    kind = record_type(f"k STRING NOT NULL, f {field}")
    assert fit_table("s", shape(k="text", f=column), kind, None) == {"k": "text", "f": column}


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("BIGINT", "int"),
        ("DOUBLE", "float"),
        ("STRING", "blob"),
        ("ARRAY<INT>", "list<int>"),
        ("INT", "counter"),
    ],
)
def test_a_column_that_loses_values_is_refused(field: str, column: str) -> None:
    """Lists that are not frozen would have their elements twice after a repetition."""
    with pytest.raises(BindingError, match=r"its column f is .*would fit"):
        fit_table("s", shape(k="text", f=column), record_type(f"k STRING NOT NULL, f {field}"), None)


def test_values_are_those_of_the_client() -> None:
    """Times are milliseconds, rounded down also before 1970; text that is no UUID is told apart."""
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, dt.UTC)
    kind = pa.timestamp("us", tz="UTC")
    assert values_of(pa.array([before], kind), "timestamp") == ([-1], {})
    assert values_of(pa.array([before, None], kind), "timestamp") == ([-1, None], {})
    for year in (1, 9999):
        moment = dt.datetime(year, 1, 2, 3, 4, 5, 678_901, dt.UTC)
        exact = (moment.replace(microsecond=678_000) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // MILLISECOND
        assert values_of(pa.array([moment, None], kind), "timestamp") == ([exact, None], {})
    name = uuid.uuid4()
    found, wrong = values_of(pa.array([str(name), "x", None]), "uuid")
    assert (found, wrong) == ([name, None, None], {1: "'x' is not of type uuid"})
    assert values_of(pa.array([{"a": 1}, None]), "text") == (['{"a":1}', None], {})


@pytest.mark.parametrize(
    ("values", "kind", "column"),
    [
        ([[1, None], None, [2]], pa.list_(pa.int64()), "frozen<list<bigint>>"),
        ([["a", None], None, []], pa.list_(pa.string()), "set<text>"),
        ([[("a", None)], None, [("a", 1)]], pa.map_(pa.string(), pa.int64()), "map<text, bigint>"),
    ],
)
def test_a_null_within_a_collection_does_not_fit(
    values: list[object], kind: pa.DataType, column: str
) -> None:
    """Servers would take it in a list, and clients could not read the row any more."""
    _, wrong = values_of(pa.array(values, kind), column)
    assert wrong == {0: "it has a null in it, which a collection cannot have"}
    texts, wrong = values_of(pa.array([[1, None]]), "text")
    assert (texts, wrong) == (["[1,null]"], {})
