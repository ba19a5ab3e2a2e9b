"""The values and types of expressions: nulls, overflows, decimals, times, texts and nested values."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expression_rows import SCHEMA, outcome, rows

from penstock.expressions.columns import Column, call, col, lit, param
from penstock.expressions.compiler import compile_condition, compile_selection
from penstock.expressions.sql_functions import FUNCTIONS
from penstock.expressions.value_types import sql_name


def at(*parts: int) -> dt.datetime:
    """A time in UTC."""
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


# The text, its type, its values on the rows of `expression_rows`, and the rows for which it fails.
VALUES: list[tuple[str, str, list[Any], list[int]]] = [
    ("temperature * 1.8 + 32", "DOUBLE", [87.80000000000001, 18.5, None], []),
    ("temperature > 30 and room in ('a', 'b')", "BOOLEAN", [True, False, None], []),
    ("n + 1", "INT", [2, None, None], [1]),
    ("big + big", "BIGINT", [None, 0, None], [0]),
    ("n / 0", "DOUBLE", [None, None, None], [0, 1]),
    ("temperature / n", "DOUBLE", [31.0, -3.4924596564343477e-09, None], []),
    ("n % 2", "INT", [1, 1, None], []),
    ("temperature % 2", "DOUBLE", [1.0, -1.5, None], []),
    ("-n", "INT", [-1, -2147483647, None], []),
    ("-1.5", "DOUBLE", [-1.5, -1.5, -1.5], []),
    ("d * 1.5", "DECIMAL(13, 3)", [Decimal("2.250"), Decimal("-3.375"), None], []),
    ("d + 1", "DECIMAL(11, 2)", [Decimal("2.50"), Decimal("-1.25"), None], []),
    ("d / 3", "DECIMAL(14, 6)", [Decimal("0.500000"), Decimal("-0.750000"), None], []),
    ("d / d", "DECIMAL(23, 13)", [Decimal("1.0000000000000"), Decimal("1.0000000000000"), None], []),
    ("d > 1.4", "BOOLEAN", [True, False, None], []),
    ("d * temperature", "DOUBLE", [46.5, 16.875, None], []),
    (
        "at + interval '5' minute",
        "TIMESTAMP",
        [at(2024, 1, 2, 3, 9, 5, 6), at(1970, 1, 1, 0, 4, 59), None],
        [],
    ),
    ("at > '2024-01-01'", "BOOLEAN", [True, False, None], []),
    ("day > '2024-01-05'", "BOOLEAN", [False, True, None], []),
    ("room || '-' || n", "STRING", ["a-1", "12-2147483647", None], []),
    ("upper(room)", "STRING", ["A", "12", None], []),
    ("length(room)", "INT", [1, 2, None], []),
    ("substring(room, 1, 1)", "STRING", ["a", "1", None], []),
    ("cast(room as int)", "INT", [None, 12, None], [0]),
    ("try_cast(room as int)", "INT", [None, 12, None], []),
    ("cast(temperature as int)", "INT", [31, -7, None], []),
    ("cast(temperature as decimal(4,1))", "DECIMAL(4, 1)", [Decimal("31.0"), Decimal("-7.5"), None], []),
    ("cast(n as decimal(10,2))", "DECIMAL(10, 2)", [Decimal("1.00"), None, None], [1]),
    ("cast(at as string)", "STRING", ["2024-01-02 03:04:05.000006", "1969-12-31 23:59:59.000000", None], []),
    ("cast(at as date)", "DATE", [dt.date(2024, 1, 2), dt.date(1969, 12, 31), None], []),
    (
        "cast('2024-01-01 10:00' as timestamp)",
        "TIMESTAMP",
        [at(2024, 1, 1, 10), at(2024, 1, 1, 10), at(2024, 1, 1, 10)],
        [],
    ),
    (
        "cast('2024-01-01T10:00:00+02:00' as timestamp)",
        "TIMESTAMP",
        [at(2024, 1, 1, 8), at(2024, 1, 1, 8), at(2024, 1, 1, 8)],
        [],
    ),
    (
        "cast('2024-01-01' as timestamp)",
        "TIMESTAMP",
        [at(2024, 1, 1, 0), at(2024, 1, 1, 0), at(2024, 1, 1, 0)],
        [],
    ),
    ("cast(day as timestamp)", "TIMESTAMP", [at(2024, 1, 2, 0), at(2024, 2, 29, 0), None], []),
    ("s.a", "INT", [1, None, None], []),
    ("s.b.c", "STRING", ["z", None, None], []),
    ("tags[0]", "STRING", ["x", None, None], []),
    ("tags[1]", "STRING", ["y", None, None], []),
    ("m['k']", "INT", [1, None, None], []),
    ("size(tags)", "INT", [2, 0, None], []),
    ("size(m)", "INT", [1, 0, None], []),
    ("array_contains(tags, 'x')", "BOOLEAN", [True, False, None], []),
    ("array(n, 2)", "ARRAY<INT>", [[1, 2], [2147483647, 2], [None, 2]], []),
    (
        "named_struct('a', n, 'b', room)",
        "STRUCT<a: INT, b: STRING>",
        [{"a": 1, "b": "a"}, {"a": 2147483647, "b": "12"}, {"a": None, "b": None}],
        [],
    ),
    ("case when n > 1 then 'big' when n = 1 then 'one' end", "STRING", ["one", "big", None], []),
    ("case when room = 'a' then 0 else cast(room as int) end", "INT", [0, 12, None], []),
    ("room <> 'a' and cast(room as int) > 3", "BOOLEAN", [False, True, None], []),
    ("n = 1 or 10 / (n - 1) > 3", "BOOLEAN", [True, False, None], []),
    ("ok is true", "BOOLEAN", [True, False, False], []),
    ("ok is not true", "BOOLEAN", [False, True, True], []),
    ("room is null", "BOOLEAN", [False, False, True], []),
    ("room is distinct from 'a'", "BOOLEAN", [False, True, True], []),
    ("room <=> 'a'", "BOOLEAN", [True, False, False], []),
    ("not ok", "BOOLEAN", [False, True, None], []),
    ("coalesce(room, 'none')", "STRING", ["a", "12", "none"], []),
    ("nullif(n, 1)", "INT", [None, 2147483647, None], []),
    ("if(ok, 1, 2.5)", "DOUBLE", [1.0, 2.5, 2.5], []),
    ("greatest(n, 5)", "INT", [5, 2147483647, 5], []),
    ("year(at)", "INT", [2024, 1969, None], []),
    ("hour(at)", "INT", [3, 23, None], []),
    ("dayofweek(day)", "INT", [3, 5, None], []),
    ("date_trunc('hour', at)", "TIMESTAMP", [at(2024, 1, 2, 3), at(1969, 12, 31, 23), None], []),
    ("extract(hour from at)", "INT", [3, 23, None], []),
    ("unix_millis(at)", "BIGINT", [1704164645000, -1000, None], []),
    ("unix_millis(timestamp '1969-12-31T23:59:59.999999Z')", "BIGINT", [-1, -1, -1], []),
    (
        "timestamp_millis(1704164645000)",
        "TIMESTAMP",
        [at(2024, 1, 2, 3, 4, 5), at(2024, 1, 2, 3, 4, 5), at(2024, 1, 2, 3, 4, 5)],
        [],
    ),
    ("room like 'a%'", "BOOLEAN", [True, False, None], []),
    ("room rlike '^[0-9]+$'", "BOOLEAN", [False, True, None], []),
    ("regexp_extract(room, '([0-9])')", "STRING", [None, "1", None], []),
    ("split('a,b', ',')", "ARRAY<STRING>", [["a", "b"], ["a", "b"], ["a", "b"]], []),
    ("round(temperature, 0)", "DOUBLE", [31.0, -8.0, None], []),
    ("round(d, 1)", "DECIMAL(10, 1)", [Decimal("1.5"), Decimal("-2.3"), None], []),
    ("floor(temperature)", "BIGINT", [31, -8, None], []),
    ("sqrt(temperature)", "DOUBLE", [5.5677643628300215, None, None], [1]),
    ("temperature > ${limit}", "BOOLEAN", [True, False, None], []),
    ("temperature between 1 and 40", "BOOLEAN", [True, False, None], []),
    ("n not in (1, 2)", "BOOLEAN", [False, True, None], []),
    ("n in (1, null)", "BOOLEAN", [True, None, None], []),
    ("n in (1, big)", "BOOLEAN", [True, False, None], []),
    ("null + 1", "INT", [None, None, None], []),
    ("f * 2", "DOUBLE", [0.20000000298023224, 5.0, None], []),
    ("f + f", "FLOAT", [0.20000000298023224, 5.0, None], []),
    ("n div 2", "BIGINT", [0, 1073741823, None], []),
    ("power(2, n)", "DOUBLE", [2.0, math.inf, None], []),
    ("abs(n)", "INT", [1, 2147483647, None], []),
    ("concat(room, n, temperature)", "STRING", ["a131", "122147483647-7.5", None], []),
    ("cast(ok as int)", "INT", [1, 0, None], []),
    ("cast(raw as string)", "STRING", ["q", "", None], []),
    ("lpad(room, 5, '*')", "STRING", ["****a", "***12", None], []),
    ("trim('  x ')", "STRING", ["x", "x", "x"], []),
    ("replace(room, 'a', 'b')", "STRING", ["b", "12", None], []),
    ("reverse(room)", "STRING", ["a", "21", None], []),
    ("left(room, 1)", "STRING", ["a", "1", None], []),
    ("right(room, 1)", "STRING", ["a", "2", None], []),
    ("raw = raw", "BOOLEAN", [True, True, None], []),
    ("f > 0.1", "BOOLEAN", [True, True, None], []),
    ('"room"', "STRING", ["a", "12", None], []),
    ("`room`", "STRING", ["a", "12", None], []),
    ("9223372036854775808", "DOUBLE", [9.223372036854776e18, 9.223372036854776e18, 9.223372036854776e18], []),
    ("cast(1 as decimal(10,2))", "DECIMAL(10, 2)", [Decimal("1.00"), Decimal("1.00"), Decimal("1.00")], []),
    ("regexp_extract(room, '[0-9]$')", "STRING", [None, "2", None], []),
    ("s", "STRUCT<a: INT, b: STRUCT<c: STRING>>", [{"a": 1, "b": {"c": "z"}}, None, None], []),
    ("m", "MAP<STRING, INT>", [[("k", 1)], [], None], []),
    ("case when ok then tags else array('q') end", "ARRAY<STRING>", [["x", "y"], ["q"], ["q"]], []),
    ("cast(null as string)", "STRING", [None, None, None], []),
    ("cast(n as tinyint)", "TINYINT", [1, None, None], [1]),
    ("n in (1.5, 2)", "BOOLEAN", [False, False, None], []),
    ("d in (1.5, 2)", "BOOLEAN", [True, False, None], []),
    ("(n + 1) * 2 / 3 % 4", "DOUBLE", [1.3333333333333333, None, None], [1]),
    ('"s"."a"', "INT", [1, None, None], []),
    ("small + small", "TINYINT", [None, -6, None], [0]),
    ("small + 1", "INT", [101, -2, None], []),
    ("sure + n", "INT", [8, None, None], [1]),
    ("cast(e as decimal(4, 1))", "DECIMAL(4, 1)", [Decimal("2.0"), Decimal("3.0"), None], []),
    (
        "cast('1.25' as decimal(4, 2))",
        "DECIMAL(4, 2)",
        [Decimal("1.25"), Decimal("1.25"), Decimal("1.25")],
        [],
    ),
    ("cast('true' as boolean)", "BOOLEAN", [True, True, True], []),
    ("cast(big as double)", "DOUBLE", [4.611686018427388e18, 0.0, None], []),
    ("substring(room, -1)", "STRING", ["a", "2", None], []),
    ("substring(room, 2)", "STRING", ["", "2", None], []),
    ("at + interval '1' day > timestamp '2024-01-03 00:00:00'", "BOOLEAN", [True, False, None], []),
    ("day + interval '2' hour", "TIMESTAMP", [at(2024, 1, 2, 2), at(2024, 2, 29, 2), None], []),
    ("mod(n, 3)", "INT", [1, 1, None], []),
    ("rpad(room, 3, '-')", "STRING", ["a--", "12-", None], []),
    ("ends_with(room, '2')", "BOOLEAN", [False, True, None], []),
    ("contains(room, 'a')", "BOOLEAN", [True, False, None], []),
    ("regexp_replace(room, '[0-9]', '#')", "STRING", ["a", "##", None], []),
    ("week(day)", "INT", [1, 9, None], []),
    ("quarter(day)", "INT", [1, 1, None], []),
    ("dayofyear(day)", "INT", [2, 60, None], []),
    ("round(n, -2)", "INT", [0, 2147483600, None], []),
    ("round(2.5)", "DOUBLE", [3.0, 3.0, 3.0], []),
    ("round(-2.5)", "DOUBLE", [-3.0, -3.0, -3.0], []),
    ("ceil(2.1)", "BIGINT", [3, 3, 3], []),
    ("ceil(d)", "BIGINT", [2, -2, None], []),
    ("sign(temperature)", "DOUBLE", [1.0, -1.0, None], []),
    ("atan2(1, 1)", "DOUBLE", [0.7853981633974483, 0.7853981633974483, 0.7853981633974483], []),
    ("least(n, sure)", "INT", [1, 8, 9], []),
    ("ifnull(n, sure)", "INT", [1, 2147483647, 9], []),
    ("array(1, null)", "ARRAY<INT>", [[1, None], [1, None], [1, None]], []),
    ("n is null or n > 0", "BOOLEAN", [True, True, True], []),
    ("case n when 1 then 'one' else 'many' end", "STRING", ["one", "many", "many"], []),
    ("m['zz']", "INT", [None, None, None], []),
    ("tags[5]", "STRING", [None, None, None], []),
    ("e + e", "DECIMAL(38, 17)", [Decimal("4.00000000000000000"), Decimal("6.00000000000000000"), None], []),
    ("e - 1", "DECIMAL(38, 17)", [Decimal("1.00000000000000000"), Decimal("2.00000000000000000"), None], []),
    ("- d", "DECIMAL(10, 2)", [Decimal("-1.50"), Decimal("2.25"), None], []),
    ("d > n", "BOOLEAN", [True, False, None], []),
    ("f = 0.5", "BOOLEAN", [False, False, None], []),
    ("at = at", "BOOLEAN", [True, True, None], []),
    ("at between '2024-01-01' and '2025-01-01'", "BOOLEAN", [True, False, None], []),
    ("raw < raw", "BOOLEAN", [False, False, None], []),
    ("room > 'a'", "BOOLEAN", [False, False, None], []),
    ("ok = true", "BOOLEAN", [True, False, None], []),
    ("s.a + 1", "INT", [2, None, None], []),
    ("case when n > 1 then null else d end", "DECIMAL(10, 2)", [Decimal("1.50"), None, None], []),
    ("coalesce(n, cast(room as int))", "INT", [1, 2147483647, None], []),
    ("try_cast('x' as date)", "DATE", [None, None, None], []),
    ("n + 1 is null", "BOOLEAN", [False, None, True], [1]),
    ("temperature between ${limit} and 40", "BOOLEAN", [True, False, None], []),
    ("acos(1)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("asin(0)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("atan(0)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("cos(0)", "DOUBLE", [1.0, 1.0, 1.0], []),
    ("sin(0)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("tan(0)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("exp(0)", "DOUBLE", [1.0, 1.0, 1.0], []),
    ("log10(100)", "DOUBLE", [2.0, 2.0, 2.0], []),
    ("log2(8)", "DOUBLE", [3.0, 3.0, 3.0], []),
    ("ln(1)", "DOUBLE", [0.0, 0.0, 0.0], []),
    ("day(at)", "INT", [2, 31, None], []),
    ("month(at)", "INT", [1, 12, None], []),
    ("minute(at)", "INT", [4, 59, None], []),
    ("second(at)", "INT", [5, 59, None], []),
    ("lower('AB')", "STRING", ["ab", "ab", "ab"], []),
    ("ltrim(' a ')", "STRING", ["a ", "a ", "a "], []),
    ("rtrim(' a ')", "STRING", [" a", " a", " a"], []),
    ("starts_with(room, 'a')", "BOOLEAN", [True, False, None], []),
    ("regexp_like(room, '1+')", "BOOLEAN", [False, True, None], []),
    ("month(day)", "INT", [1, 2, None], []),
    ("-d", "DECIMAL(10, 2)", [Decimal("-1.50"), Decimal("2.25"), None], []),
    ("n % -1", "INT", [0, 0, None], []),
    ("cast(ok as string)", "STRING", ["true", "false", None], []),
    ("cast(day as string)", "STRING", ["2024-01-02", "2024-02-29", None], []),
    ("cast('ab' as binary)", "BINARY", [b"ab", b"ab", b"ab"], []),
    ("length('äö')", "INT", [2, 2, 2], []),
    ("reverse('äö')", "STRING", ["öä", "öä", "öä"], []),
    ("e * 2", "DECIMAL(38, 16)", [Decimal("4.0000000000000000"), Decimal("6.0000000000000000"), None], []),
    (
        "e / 3",
        "DECIMAL(38, 18)",
        [Decimal("0.666666666666666667"), Decimal("1.000000000000000000"), None],
        [],
    ),
    ("nullif(room, 'a')", "STRING", [None, "12", None], []),
]


@pytest.mark.parametrize(("text", "kind", "values", "failing"), VALUES, ids=[case[0] for case in VALUES])
def test_an_expression_has_the_values_and_type_of_sql(
    text: str, kind: str, values: list[Any], failing: list[int]
) -> None:
    """It is null where a value is missing or the expression fails; failing rows are reported with the
    expression.
    """
    found = outcome(text, **({"limit": 30.0} if "${limit}" in text else {}))
    assert found.values == values
    assert sql_name(found.kind) == kind
    assert sorted(found.failures) == failing
    assert all(text in reason for reason in found.failures.values())


def test_every_function_has_a_case() -> None:
    """No function in the table is untested."""
    tested = " ".join(case[0] for case in VALUES)
    aliases = {}
    for name, function in FUNCTIONS.items():
        aliases.setdefault(function.bind, []).append(name)
    missing = [names[0] for names in aliases.values() if not any(f"{name}(" in tested for name in names)]
    assert missing == []


def test_every_function_is_in_the_guide() -> None:
    """The guide has all of its names, and no others."""
    guide = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith(("| text |", "| numbers |", "| time |"))]
    rows += [line for line in guide.splitlines() if line.startswith(("| any |", "| nested |"))]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(FUNCTIONS)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (col("temperature") * 1.8 + 32, "temperature * 1.8 + 32"),
        (
            (col("temperature") > 30) & col("room").is_in(["a", "b"]),
            "temperature > 30 and room in ('a', 'b')",
        ),
        (~(col("n") <= 1) | col("ok"), "not (n <= 1) or ok"),
        (-col("n"), "-n"),
        (1 - col("n") % 3, "1 - n % 3"),
        (2 / col("n"), "2 / n"),
        (3 * col("n") - 2, "3 * n - 2"),
        (5 + col("n"), "5 + n"),
        (10 % col("n"), "10 % n"),
        (col("n") / 4, "n / 4"),
        (col("s.b.c"), "s.b.c"),
        (col("tags")[1], "tags[1]"),
        (col("m")["k"], "m['k']"),
        (col("room").is_null(), "room is null"),
        (col("room").is_not_null(), "room is not null"),
        (col("room") != lit("it's"), "room <> 'it''s'"),
        (col("room").like("a%"), "room like 'a%'"),
        (col("n").between(1, 5), "n between 1 and 5"),
        (col("n") < 5, "n < 5"),
        (col("n") >= lit(None), "n >= null"),
        (col("d") == Decimal("1.50"), "d = 1.50"),
        (col("at") > at(2024, 1, 1), "at > timestamp '2024-01-01 00:00:00'"),
        (col("day") == dt.date(2024, 1, 2), "day = date '2024-01-02'"),
        (col("at") + dt.timedelta(minutes=5), "at + interval '5' minute"),
        (col("ok") == True, "ok = true"),  # noqa: E712  # an expression
        (call("upper", col("room")), "upper(room)"),
        (col("n").cast("DECIMAL(12, 1)"), "cast(n as decimal(12, 1))"),
    ],
    ids=str,
)
def test_a_column_means_the_same_as_its_text(column: Column, text: str) -> None:
    """Both give the same values of the same type."""
    found, expected = outcome(column.sql), outcome(text)
    assert (found.values, found.kind) == (expected.values, expected.kind)
    assert found.failures.keys() == expected.failures.keys()


def test_a_selection_keeps_what_is_copied_and_names_the_rest() -> None:
    """Names, types and nullability of the fields."""
    found = compile_selection(
        ["sure", "room AS place", "n + 1 AS more", "sure + 1 AS next", "s"], SCHEMA
    ).record_type
    assert [(f.name, sql_name(f.arrow_type), f.nullable) for f in found.fields] == [
        ("sure", "INT", False),
        ("place", "STRING", True),
        ("more", "INT", True),
        ("next", "INT", False),
        ("s", "STRUCT<a: INT, b: STRUCT<c: STRING>>", True),
    ]
    assert compile_selection(["*", "n * 2 AS twice"], SCHEMA).record_type.field_names == (
        *SCHEMA.field_names,
        "twice",
    )


def test_a_time_that_python_cannot_have_fails() -> None:
    """Such are years after 9999, which functions on single records could not read."""
    found = outcome("at + interval '500000' week")
    assert found.failures == {
        0: "the selection has no value: field 'v' lies beyond the years 1 to 9999",
        1: "the selection has no value: field 'v' lies beyond the years 1 to 9999",
    }


def test_a_parameter_is_null_until_it_has_a_value() -> None:
    """A condition with a null parameter is true for no record."""
    condition = compile_condition(col("n") > param("limit"), SCHEMA, {"limit": pa.int64()})
    mask, failures = condition.rows(rows(), {"limit": pa.scalar(None, pa.int64())})
    assert not mask.any()
    assert failures == {}
    mask, _ = condition.rows(rows(), {"limit": pa.scalar(5, pa.int64())})
    assert mask.tolist() == [False, True, False]
