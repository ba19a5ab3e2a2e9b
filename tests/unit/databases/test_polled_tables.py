"""Polled tables: the queries that read them, and the writers that may still commit rows."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from penstock.databases.open_writers import still_open
from penstock.databases.polled_table import PolledTable
from penstock.databases.row_json import COMMAND_ROWS, Column, RowShape, row_json, unfit_columns

TABLE = PolledTable('"s"."50%"', ("at", "id"), "t.x", 't."at" IS NOT NULL', (7, 8), is_indexed=True)


def test_a_page_has_as_many_parameters_as_values() -> None:
    """They are the previous key, the last key, and the limit; a percent sign in a name is no parameter."""
    for after, count in ((False, 3), (True, 5)):
        query = TABLE.page(after=after)
        assert len(re.findall(r"(?<!%)%s", query)) == count
        assert '"50%%"' in query
    assert TABLE.newest.endswith('ORDER BY t."at" DESC, t."id" DESC LIMIT 1')


@pytest.mark.parametrize(
    ("moments", "lasting"),
    [
        ([{"3/1": 10}, {"3/2": 10}], {}),
        ([{"3/1": 10, "4/1": 11}, {"3/1": 10}, {"5/1": 12}], {}),
        # One transaction is prepared, and another starts after it.
        ([{"3/1": 10}, {"-1/700": None}, {"-1/700": None, "3/2": 10}], {"-1/700": None}),
        ([{"3/1": 10}, {"-1/700": None}, {"3/2": 10}], {}),
    ],
)
def test_only_the_writers_of_the_first_moment_are_awaited(
    moments: list[dict[str, int | None]], lasting: dict[str, int | None]
) -> None:
    """A prepared transaction may be one of them, under another name."""
    awaited, seen = moments[0], set(moments[0])
    for now in moments[1:]:
        awaited = still_open(awaited, seen, now)
        seen |= set(awaited)
    assert awaited == lasting


def test_columns_that_do_not_fit_are_named() -> None:
    """In JSON, bytes inside an array are hexadecimal digits, which no field reads."""
    columns = {
        "n": Column("n", "bigint", "int8", "N"),
        "raw": Column("raw", "bytea[]", "_bytea", "A"),
        "name": Column("name", "uuid", "uuid", "U"),
    }
    shape = RowShape(pa.schema([("n", pa.bool_()), ("raw", pa.list_(pa.binary())), ("name", pa.string())]))
    assert [clause.partition(" ")[0] for clause in unfit_columns(shape, columns)] == ["n", "raw"]


def test_commands_lack_what_the_table_lacks() -> None:
    """Only id and kind are required."""
    columns = {"id": Column("id", "text", "text", "S")}
    assert COMMAND_ROWS.missing(columns) == ["kind"]
    assert 'AS "id"' in row_json(COMMAND_ROWS, columns)
    assert "payload" not in row_json(COMMAND_ROWS, columns)
