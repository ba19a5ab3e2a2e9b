"""CSV and Parquet: cells become typed columns, and rows that do not fit become bad records."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import decimal
import enum
import io
import itertools
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sources import cells, file_tables
from penstock.sources.base import BadRecord
from penstock.sources.cells import parse_cells
from penstock.sources.file_errors import UnreadableFileError
from penstock.sources.file_tables import CsvFile, read_csv, read_parquet


class Switch(enum.Enum):
    ON = "ON"
    OFF = "OFF"


@dataclasses.dataclass
class Everything:
    i: int
    f: float | None
    s: str | None
    b: bool | None
    y: bytes | None
    t: dt.datetime | None
    d: dt.date | None
    m: decimal.Decimal | None
    e: Switch | None
    xs: list[int] | None


def csv_rows(path: Path, kind: RecordType) -> tuple[list[tuple[int, dict[str, Any]]], list[BadRecord]]:
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: list[BadRecord] = []
    for chunk in read_csv(CsvFile(str(path)), "p", kind):
        assert chunk.batch is not None
        assert chunk.batch.schema == kind.schema
        rows += zip(chunk.offsets.to_pylist(), chunk.batch.to_pylist(), strict=True)
        bad += chunk.bad
    return rows, bad


def test_csv_cells_become_typed_values(tmp_path: Path) -> None:
    """Every type has a text form; times without a zone are in UTC; an unquoted empty cell is null."""
    path = tmp_path / "f.csv"
    path.write_text(
        "extra,i,f,s,b,y,t,d,m,e,xs\n"
        'x,1,1.5,"a,""b""\nc",true,AAEC,2024-01-02T03:04:05Z,2024-01-02,1.50,ON,"[1,2]"\n'
        ' , 2 ,nan,"",0,"",2024-01-02 03:04:05,,,OFF,\n'
        ",+3,,,,,2024-01-02T03:04:05+01:00,,,,\n"
    )
    rows, bad = csv_rows(path, record_type(Everything))
    assert bad == []
    time = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert rows[0] == (
        1,
        {
            "i": 1, "f": 1.5, "s": 'a,"b"\nc', "b": True, "y": b"\0\1\2", "t": time, "d": dt.date(2024, 1, 2),
            "m": decimal.Decimal("1.5"), "e": "ON", "xs": [1, 2],
        },
    )  # fmt: skip
    assert (rows[1][1]["i"], rows[1][1]["s"], rows[1][1]["y"], rows[1][1]["t"]) == (2, "", b"", time)
    assert (rows[2][1]["i"], rows[2][1]["s"]) == (3, None)
    assert rows[2][1]["t"] == time - dt.timedelta(hours=1)


def test_csv_cells_that_do_not_fit_become_bad_records(tmp_path: Path) -> None:
    """The reason names the field and the value, the offset is the row; the other rows are read."""
    path = tmp_path / "f.csv"
    path.write_bytes(
        b"i,s,e\n1,a,ON\nx,b,ON\n\n3,c,BROKEN\n4\n5,e,OFF,6\n7,\xff,\n99999999999999999999,h,\n9,i,ON\n"
    )
    rows, bad = csv_rows(path, record_type(Everything))
    assert [(offset, row["i"]) for offset, row in rows] == [(1, 1), (8, 9)]
    assert [(record.offset, record.raw) for record in bad] == [
        (2, b"x,b,ON"),
        (3, b"3,c,BROKEN"),
        (4, b"4"),
        (5, b"5,e,OFF,6"),
        (6, b"7,\xff,"),
        (7, b"99999999999999999999,h,"),
    ]
    assert bad[0].reason == "field 'i': 'x' is not of type int64"
    assert bad[1].reason == "field 'e': 'BROKEN' is not of type Switch"
    assert bad[2].reason == "The row has 1 fields where the header has 3."


def test_csv_files_without_rows_or_fields(tmp_path: Path) -> None:
    """A file without rows yields nothing; a header without any field of the schema is refused as the wrong
    file.
    """
    path = tmp_path / "f.csv"
    for content in ("", "\n", "n", "n\n", "\n\nn\n"):
        path.write_text(content)
        assert csv_rows(path, record_type("n INT")) == ([], [])
    path.write_text("1,2\n3,4\n")
    with pytest.raises(UnreadableFileError, match=r"columns are '1', '2'.*header"):
        csv_rows(path, record_type("n INT"))


CELLS = st.text(st.sampled_from('a1,"\n\r \u00e9\u4e2d;'), max_size=6)


@given(rows=st.lists(st.tuples(CELLS, st.integers(-(2**31), 2**31 - 1)), max_size=20))
def test_what_python_writes_as_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    """Quotes, newlines and commas in cells survive, and rows keep their numbers."""
    path = tmp_path_factory.getbasetemp() / "written.csv"
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows([("s", "n"), *rows])
    path.write_bytes(text.getvalue().encode())
    found, bad = csv_rows(path, record_type("n INT, s STRING"))
    assert bad == []
    assert [(row["s"], row["n"]) for _, row in found] == rows
    assert [offset for offset, _ in found] == list(range(1, len(rows) + 1))


def test_bad_rows_far_apart_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    """Row numbers stay right across blocks when bad rows are in every block."""
    path = tmp_path / "f.csv"
    count, width = 30_000, 1000
    lines = [f"{i},{'x' * width}" if i % 7_000 else f"{i},a,b" for i in range(1, count)]
    path.write_text("\n".join(["n,s", *lines, f"{count},c,d"]) + "\n")
    rows, bad = csv_rows(path, record_type("n INT, s STRING"))
    assert all(offset == row["n"] for offset, row in rows)
    assert [record.offset for record in bad] == [7_000, 14_000, 21_000, 28_000, count]
    assert len(rows) + len(bad) == count


def parquet_rows(
    path: Path, kind: RecordType, end: int = 100
) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    chunks = list(read_parquet(str(path), "p", 0, end, kind))
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]  # type: ignore[union-attr]
    return rows, [bad for chunk in chunks for bad in chunk.bad]


def test_parquet_columns_are_cast_to_the_schema(tmp_path: Path) -> None:
    """Other widths, dictionary encoding and nanoseconds are converted; a missing column is null."""
    path = tmp_path / "f.parquet"
    time = dt.datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001  # a column without a zone
    columns = {
        "i": pa.array([1, 2], pa.int16()),
        "s": pa.array(["a", "a"]).dictionary_encode(),
        "t": pa.array([time, None], pa.timestamp("ns")),
        "e": pa.array(["ON", "OFF"], pa.large_string()),
        "other": pa.array([1, 2]),
    }
    pq.write_table(pa.table(columns), path)
    rows, bad = parquet_rows(path, record_type(Everything))
    assert bad == []
    assert [(row["i"], row["s"], row["t"], row["e"], row["f"]) for row in rows] == [
        (1, "a", time.replace(tzinfo=dt.UTC), "ON", None),
        (2, "a", None, "OFF", None),
    ]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_become_the_microsecond_in_which_they_are(zone: str | None, tmp_path: Path) -> None:
    """Truncating digits before 1970 would make a time later; lists, maps and records are covered too."""
    there = pa.timestamp("ns", zone)
    numbers = [-1, -1000, -1001, None, 0, 1999, -(2**63) + 1]
    floored = [-1, -1, -2, None, 0, 1, (-(2**63) + 1) // 1000]
    columns = {
        "t": pa.array(numbers, there),
        "l": pa.array([[one] for one in numbers], pa.list_(there)),
        "m": pa.array([[("k", one)] for one in numbers], pa.map_(pa.string(), there)),
        "s": pa.array(
            [{"n": 7, "at": one} for one in numbers], pa.struct([("n", pa.int64()), ("at", there)])
        ),
    }
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table(columns), path)
    kind = record_type(
        "t TIMESTAMP, l ARRAY<TIMESTAMP>, m MAP<STRING, TIMESTAMP>, s STRUCT<n: BIGINT, at: TIMESTAMP>"
    )
    for start in (0, 2):
        (chunk,) = read_parquet(str(path), "p", start, 100, kind)
        assert chunk.batch is not None
        found = chunk.batch
        leaves = [
            found["t"],
            found["l"].flatten(),
            pa.concat_arrays([found["m"]]).items[start and -len(found) :],
            found["s"].field("at"),
        ]
        assert [leaf.cast(pa.int64()).to_pylist() for leaf in leaves] == [floored[start:]] * 4


def test_parquet_values_that_do_not_fit_become_bad_records(tmp_path: Path) -> None:
    """Only rows with such a value are bad; each has the reason and the whole row as JSON."""
    path = tmp_path / "f.parquet"
    columns = {
        "i": pa.array([1.0, 2.5, 3.0, float("nan"), 2.0**40]),
        "s": pa.array(["x", "y", "z", "u", "v"]),
    }
    pq.write_table(pa.table(columns), path)
    rows, bad = parquet_rows(path, record_type("i INT, s STRING"))
    assert [row["i"] for row in rows] == [1, 3]
    assert [record.offset for record in bad] == [1, 3, 4]
    assert (bad[0].reason, bad[0].raw) == ("field 'i': 2.5 is not of type int32", b'{"i":2.5,"s":"y"}')


def test_a_parquet_column_of_another_kind_is_bad_where_it_has_values(tmp_path: Path) -> None:
    """Rows with values in an inconvertible column are bad; null rows pass."""
    path = tmp_path / "f.parquet"
    columns = {"i": pa.array([[1], None], pa.list_(pa.int64())), "s": pa.array(["x", "y"])}
    pq.write_table(pa.table(columns), path)
    rows, bad = parquet_rows(path, record_type("i INT, s STRING"))
    assert rows == [{"i": None, "s": "y"}]
    assert [(record.offset, record.raw) for record in bad] == [(0, b'{"i":[1],"s":"x"}')]


@given(
    groups=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_parquet_row_ranges_give_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int], cuts: list[int]
) -> None:
    """Adjacent ranges give every row once, over any row groups."""
    path, total = tmp_path_factory.getbasetemp() / "ranges.parquet", sum(groups)
    table = pa.table({"n": pa.array(range(total), pa.int32())})
    with pq.ParquetWriter(path, table.schema) as writer:
        begin = 0
        for size in groups:
            writer.write_table(table.slice(begin, size), row_group_size=size)
            begin += size
    bounds = sorted({0, total, *(cut for cut in cuts if cut < total)})
    seen = []
    for start, end in itertools.pairwise(bounds):
        for chunk in read_parquet(str(path), "p", start, end, record_type("n INT")):
            assert chunk.batch is not None
            assert chunk.offsets.to_pylist() == chunk.batch.column("n").to_pylist()
            seen += chunk.offsets.to_pylist()
    assert seen == list(range(total))


TYPES = [
    "TINYINT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "STRING",
    "BOOLEAN",
    "TIMESTAMP",
    "DATE",
    "DECIMAL(9, 2)",
    "BINARY",
]
TEXTS = [
    *(
        "",
        '""',
        " ",
        "0",
        "7",
        " 7",
        "7 ",
        "+7",
        "-0",
        "007",
        "0x1F",
        "1_0",
        "128",
        "99999999999999999999",
        "\u00a07",
    ),
    *("1.5", "+1.5", "1e3", ".5", "5.", "nan", "-inf", "Infinity", "1e400", "1,5", "1.505", "1.50"),
    *(
        "true",
        "TRUE",
        "tRuE",
        "false",
        "yes",
        "2024-02-29",
        "2023-02-29",
        "2024-2-9",
        " 2024-02-29",
        "20240229",
    ),
    *("2024-01-02 03:04:05", "2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123456+01:00", "2024-01-02T03:04"),
    *("2024-01-02T03:04:05.1234567Z", "2024-01-02T03:04:05 +0100", "AAEC", "a b", "\u00e4", "null", "NULL"),
]


def csv_chunks(path: Path, kind: RecordType) -> list[Any]:
    """Return all that a file becomes, with types, in a form in which NaN can be compared."""
    rows, bad = csv_rows(path, kind)
    return [repr(rows), bad]


@examples(60)
@given(
    st.sampled_from(TYPES), st.lists(st.sampled_from(TEXTS) | st.text(max_size=4), min_size=1, max_size=12)
)
def test_cells_are_read_alike_as_they_are_and_tidied(ddl: str, texts: list[str]) -> None:
    """A cell that Arrow parses unchanged has the same value after trimming."""
    (field,) = record_type(f"x {ddl}").fields
    column = pa.array([text.encode("utf-8", "replace") for text in texts], pa.binary())

    def read() -> tuple[str, list[bool]]:
        found = parse_cells(column, field)
        bad = [False] * len(texts) if found.bad is None else found.bad.tolist()
        return repr(found.column.to_pylist()), bad

    plain = read()
    with mock.patch.object(cells, "_as_it_is", return_value=None):
        assert read() == plain


@examples(60)
@given(
    st.lists(
        st.tuples(*(st.sampled_from(TEXTS) for _ in range(3)), st.integers(0, 9)), min_size=1, max_size=60
    ),
    st.permutations(["TINYINT", "DOUBLE", "STRING", "DATE", "TIMESTAMP", "DECIMAL(9, 2)"]),
    st.sampled_from([64, 256, 8 << 20]),
    st.booleans(),
)
def test_a_csv_file_is_read_alike_typed_and_as_it_is(
    rows: list[tuple[str, str, str, int]], types: list[str], block_bytes: int, is_clean: bool
) -> None:
    """Records, offsets, reasons and raw lines are equal, whatever does not fit and wherever that starts."""
    kind = record_type(f"a {types[0]}, b {types[1]}, c {types[2]}, gone INT")
    fine = {
        "TINYINT": "7",
        "DOUBLE": "1.5",
        "DATE": "2024-02-29",
        "TIMESTAMP": "2024-01-02",
        "DECIMAL(9, 2)": "1.5",
    }
    clean = ",".join(fine.get(one, "x") for one in types[:3])
    lines = [
        clean if is_clean and width != 9 else ",".join(_quoted(cell) for cell in cells[: 2 + (width != 0)])
        for *cells, width in rows
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(file_tables, "_CSV_BLOCK_BYTES", block_bytes),
    ):
        path = Path(folder, "f.csv")
        # Blocks hold whole rows, so the smallest block is longer than the longest row.
        path.write_text("a,b,c\n" + "\n".join(lines) + "\n", encoding="utf-8", newline="")
        try:
            found = csv_chunks(path, kind)
        except UnreadableFileError as e:
            found = [str(e), e.offset]
        with mock.patch.object(file_tables, "_WAYS", (False,)):
            try:
                expected = csv_chunks(path, kind)
            except UnreadableFileError as e:
                expected = [str(e), e.offset]
        assert found == expected


def _quoted(cell: str) -> str:
    return cell if cell == '""' or not set(cell) & set(',"') else '"' + cell.replace('"', '""') + '"'


@pytest.mark.parametrize(
    ("content", "rows", "reason"),
    [
        (b"\n\r\nt,s\nx,y\n", [(1, {"t": "x", "s": "y"})], ""),
        (b"t,s,s\nx,y,z\n", [], "has 2 columns named 's'"),
    ],
)
def test_header_lines_of_csv(tmp_path: Path, content: bytes, rows: Any, reason: str) -> None:
    """Blank lines before the header are skipped, and a file with duplicate column names is refused."""
    path = tmp_path / "f.csv"
    path.write_bytes(content)
    kind = record_type("t STRING, s STRING")
    if reason:
        with pytest.raises(UnreadableFileError, match=reason):
            csv_rows(path, kind)
    else:
        assert csv_rows(path, kind) == (rows, [])


@pytest.mark.parametrize("more", ["", "bad,2\n"])
def test_a_number_too_large_is_no_infinity(tmp_path: Path, more: str) -> None:
    """A cell's meaning does not depend on other rows, and non-ASCII spaces are never trimmed."""
    path = tmp_path / "f.csv"
    path.write_text(f"f,i\n1e400,1\n-inf,2\n1,3\u00a0\n{more}")
    rows, bad = csv_rows(path, record_type("f DOUBLE, i INT"))
    assert rows == [(2, {"f": float("-inf"), "i": 2})]
    assert [one.offset for one in bad] == [1, 3, 4][: 2 + bool(more)]


def test_parquet_values_that_records_cannot_have(tmp_path: Path) -> None:
    """Such are numbers out of range for times or FLOAT, and text that is not UTF-8; the other rows are read."""
    text = pa.array([b"\xff", b"a"], pa.binary()).view(pa.string())
    for column, ddl, why in (
        (pa.array([1_700_000_000_000, None]), "a TIMESTAMP", "1700000000000 is not of type timestamp"),
        (pa.array([1, None], pa.timestamp("us")), "a BIGINT", "is not of type int64"),
        (text, "a STRING", r"is not of type string"),
        (pa.array([1e300, 1.1]), "a FLOAT", r"1e\+300 is not of type float"),
        (pa.array([{"x": 5}, None]), "a STRUCT<x: TIMESTAMP>", r"\{'x': 5\} is not of type struct"),
    ):
        pq.write_table(pa.table({"a": column}), tmp_path / "f.parquet")
        (chunk,) = read_parquet(str(tmp_path / "f.parquet"), "p", 0, 2, record_type(ddl))
        assert chunk.offsets.to_pylist() == [1]
        assert re.search(why, chunk.bad[0].reason)


def test_parquet_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(UnreadableFileError, match="has 2 columns named 'a'"):
        list(read_parquet(str(tmp_path / "f.parquet"), "p", 0, 1, record_type("a INT")))


@pytest.mark.parametrize("more", ["", "bad,,,x\n"])
def test_a_quote_that_is_not_closed_takes_no_rows(tmp_path: Path, more: str) -> None:
    """An unclosed quote spoils one row only, not the rest of the file. A multi-line row at the end is one row."""
    path = tmp_path / "f.csv"
    kind = record_type("i INT, d DATE, f DOUBLE, s STRING")
    begin = f'i,d,f,s\n{more}1,,,"a\nb"\n'
    path.write_text(f'{begin}2,,,"c\n3,,,d\n4,,,e\n')
    with pytest.raises(UnreadableFileError, match=f"in row {3 if more else 2} of the CSV file is not closed"):
        csv_rows(path, kind)
    for last in ('2,,,"c\nd"', "2,0000-01-01,nan,c", "2,,,c\n\n", '2,,,c"d'):
        path.write_text(begin + last)
        chunks = list(read_csv(CsvFile(str(path)), "p", kind))
        assert sum(len(chunk.offsets) for chunk in chunks) == 2


def test_nested_cells_are_those_of_json(tmp_path: Path) -> None:
    """Nested cells have defaults and times as in JSON; deep nesting is a bad record and does not end the run."""
    path = tmp_path / "f.csv"
    cells_of = (
        '{"x": 1}', '{"x": 1.5}', '{"x": 1, "t": "2024-01-01T00:00:00Z"}', '{"x": 1, "t": 5}', "[" * 100_000, ""
    )  # fmt: skip
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "k"], *([cell, 1] for cell in cells_of)])
    rows, bad = csv_rows(path, record_type("a STRUCT<x: INT, t: TIMESTAMP>, k INT"))
    time = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    assert [(number, row["a"]) for number, row in rows] == [
        (1, {"x": 1, "t": None}),
        (3, {"x": 1, "t": time}),
        (6, None),
    ]
    assert [one.offset for one in bad] == [2, 4, 5]
