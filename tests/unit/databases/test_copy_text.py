"""Records as CSV for COPY: a CSV reader gets the same values back, and nulls differ from empty text."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.databases.copy_text import column_type, copy_text
from penstock.databases.postgres_table import Statements, quote

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", '"', ",", "\n", "\r\n", "\\.", "\\N", "NULL", " "]
)


@given(
    st.lists(
        st.tuples(TEXT | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none()), min_size=1, max_size=5
    )
)
def test_text_and_numbers_come_back(rows: list[tuple[str | None, int | None]]) -> None:
    """Any text survives, line by line."""
    batch = pa.record_batch(
        {
            "text": pa.array([text for text, _ in rows], pa.string()),
            "number": pa.array([number for _, number in rows], pa.int64()),
        }
    )
    lines = io.BytesIO(copy_text(batch))
    found = pa.csv.read_csv(
        lines,
        pa.csv.ReadOptions(column_names=["text", "number"]),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types=batch.schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert found.to_pylist() == batch.to_pylist()


@given(st.lists(st.binary(max_size=5) | st.none(), min_size=1, max_size=5))
def test_bytes_are_hexadecimal(values: list[bytes | None]) -> None:
    r"""The form is PostgreSQL's own: \\x and two digits per byte."""
    lines = copy_text(pa.record_batch({"raw": pa.array(values, pa.binary())})).decode().split("\n")[:-1]
    assert lines == ["" if value is None else f'"\\x{value.hex()}"' for value in values]


def test_what_is_inside_a_record_is_json() -> None:
    """These are lists, maps and records."""
    kinds = {
        "list": (pa.list_(pa.float64()), [1.5, None]),
        "map": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        "record": (pa.struct([("x", pa.string())]), {"x": 'a"b'}),
    }
    for kind, value in kinds.values():
        line = next(csv.reader([copy_text(pa.record_batch({"n": pa.array([value], kind)})).decode()]))
        expected: Any = dict(value) if pa.types.is_map(kind) else value
        assert json.loads(line[0]) == expected
        assert column_type(kind) == "jsonb"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "smallint"),
        (pa.int32(), "integer"),
        (pa.int64(), "bigint"),
        (pa.float32(), "real"),
        (pa.decimal128(20, 3), "numeric(20,3)"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamp with time zone"),
        (pa.binary(), "bytea"),
        (pa.string(), "text"),
    ],
)
def test_each_type_has_a_column(kind: pa.DataType, expected: str) -> None:
    """It can hold all values of the type."""
    assert column_type(kind) == expected


def test_names_of_the_user_are_only_names() -> None:
    """They are quoted, whatever characters they have."""
    name = 'a"; DROP TABLE x; --'
    assert quote(name) == '"a""; DROP TABLE x; --"'
    statements = Statements("t", (name, "b"), (name,))
    for text in (statements.copy, statements.stage, *statements.apply(with_nulls=False)):
        assert name not in text.replace('"a""; DROP TABLE x; --"', "")
    assert "DO NOTHING" in Statements("t", ("a",), ("a",)).apply(with_nulls=True)[1]
