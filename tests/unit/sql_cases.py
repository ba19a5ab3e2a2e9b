"""Statements in SQL with the data that they read: the same results are expected in every mode, and from DuckDB."""
# ruff: noqa: E501  # a statement is one line

from __future__ import annotations

import datetime as dt
import functools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

import penstock as ps

BEGUN = dt.datetime(2024, 3, 1, 9, 0, tzinfo=dt.UTC)
OUT_OF_ORDER_S = 5

DECLARATIONS = f"""
CREATE STREAM readings (
  id BIGINT NOT NULL, room STRING NOT NULL, sensor INT NOT NULL, celsius DOUBLE, amount DECIMAL(10, 2), n BIGINT,
  note STRING, ok BOOLEAN, day DATE NOT NULL, seen TIMESTAMP NOT NULL,
  WATERMARK FOR seen AS seen - INTERVAL '{OUT_OF_ORDER_S}' SECOND
);
CREATE STREAM visits (
  id BIGINT NOT NULL, room STRING NOT NULL, minutes INT, seen TIMESTAMP NOT NULL,
  WATERMARK FOR seen AS seen - INTERVAL '{OUT_OF_ORDER_S}' SECOND
);
SET 'limit' = 20.0;
SET 'wanted' = 'a';
"""
TYPES = {
    "readings": pa.schema(
        [
            ("id", pa.int64()), ("room", pa.string()), ("sensor", pa.int32()), ("celsius", pa.float64()),
            ("amount", pa.decimal128(10, 2)), ("n", pa.int64()), ("note", pa.string()), ("ok", pa.bool_()),
            ("day", pa.date32()), ("seen", pa.timestamp("us")),
        ]
    ),
    "visits": pa.schema(
        [("id", pa.int64()), ("room", pa.string()), ("minutes", pa.int32()), ("seen", pa.timestamp("us"))]
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A statement. `duck` is what DuckDB is asked, if that differs; `functions` are what SQL may call."""

    name: str
    sql: str
    duck: str = ""
    before: str = ""
    functions: tuple[tuple[str, Any], ...] = ()

    def text(self) -> str:
        body = self.sql
        for name, (own, _) in _windows().items():
            body = body.replace(f"{{{name}}}", own)
        insert = body if "INSERT INTO" in body else f"INSERT INTO out {body}"
        return f"{DECLARATIONS}{self.before}\n{insert};"

    def duck_text(self) -> str:
        body = self.duck or self.sql
        for name, (_, duck) in _windows().items():
            body = body.replace(f"{{{name}}}", f"({duck})")
        return body.replace("${limit}", "20.0").replace("${wanted}", "'a'")


@functools.cache
def _windows() -> dict[str, tuple[str, str]]:
    """The functions of windows that statements name in braces, for penstock and for DuckDB."""
    found = {}
    for table in ("readings", "visits"):
        found |= {
            f"{table} by 5": (
                f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(seen), INTERVAL '5' MINUTE))",
                (
                    f"SELECT *, time_bucket(INTERVAL 5 MINUTE, seen) AS window_start, "
                    f"time_bucket(INTERVAL 5 MINUTE, seen) + INTERVAL 5 MINUTE AS window_end FROM {table}"
                ),
            ),
            f"{table} hopping": (
                f"TABLE(HOP(TABLE {table}, DESCRIPTOR(seen), INTERVAL '2' MINUTE, INTERVAL '6' MINUTE))",
                (
                    f"SELECT t.*, time_bucket(INTERVAL 2 MINUTE, seen) - to_minutes(2 * k) AS window_start, "
                    f"time_bucket(INTERVAL 2 MINUTE, seen) - to_minutes(2 * k) + INTERVAL 6 MINUTE AS window_end "
                    f"FROM {table} t, range(3) r(k)"
                ),
            ),
            f"{table} cumulating": (
                f"TABLE(CUMULATE(TABLE {table}, DESCRIPTOR(seen), INTERVAL '3' MINUTE, INTERVAL '12' MINUTE))",
                (
                    f"SELECT t.*, time_bucket(INTERVAL 12 MINUTE, seen) AS window_start, "
                    f"time_bucket(INTERVAL 12 MINUTE, seen) + to_minutes(3 * k) AS window_end "
                    f"FROM {table} t, range(1, 5) r(k) WHERE time_bucket(INTERVAL 12 MINUTE, seen) + to_minutes(3 * k) > seen"
                ),
            ),
            f"{table} in sessions": (
                f"TABLE(SESSION(TABLE {table} PARTITION BY room, DESCRIPTOR(seen), INTERVAL '40' SECOND))",
                # Two records one gap apart are in one session.
                (
                    f"SELECT *, min(seen) OVER (PARTITION BY room, number) AS window_start, "
                    f"max(seen) OVER (PARTITION BY room, number) + INTERVAL 40 SECOND AS window_end FROM ("
                    f"SELECT *, sum(CASE WHEN seen - before <= INTERVAL 40 SECOND THEN 0 ELSE 1 END) "
                    f"OVER (PARTITION BY room ORDER BY seen, id) AS number FROM ("
                    f"SELECT *, lag(seen) OVER (PARTITION BY room ORDER BY seen, id) AS before FROM {table}))"
                ),
            ),
        }
    return found


@functools.cache
def data(seed: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Records of both streams in the order in which they come. Sums of their doubles do not depend on the order."""
    rng = random.Random(seed)
    readings, visits = [], []
    for number in range(240):
        seen = BEGUN + dt.timedelta(
            seconds=number * 11 - rng.randrange(OUT_OF_ORDER_S), milliseconds=rng.randrange(900)
        )
        readings.append(
            {
                "id": number,
                "room": rng.choice("abcd"),
                "sensor": rng.randrange(5),
                "celsius": rng.choice([None, rng.randrange(-40, 160) / 4]),
                "amount": rng.choice([None, Decimal(rng.randrange(-5000, 5000)) / 100]),
                "n": rng.choice([None, rng.randrange(-10, 10), rng.randrange(1 << 40)]),
                "note": rng.choice([None, "", "Tea", "tea time", "it's", "ünï"]),
                "ok": rng.choice([None, True, False]),
                "day": seen.date() + dt.timedelta(days=rng.randrange(3)),
                "seen": seen,
            }
        )
        if number % 3 == 0:
            visits.append(
                {
                    "id": number,
                    "room": rng.choice("abc"),
                    "minutes": rng.choice([None, rng.randrange(60)]),
                    "seen": seen + dt.timedelta(seconds=rng.randrange(3)),
                }
            )
    return {"readings": readings, "visits": visits}


def described(case: Case, key_groups: int = 8) -> ps.Job:
    job = ps.Job("statements", key_groups=key_groups)
    job.sql(case.text(), functions=dict(case.functions))
    return job


def normal(rows: Iterable[Iterable[Any]]) -> Counter[tuple[str, ...]]:
    """Rows as they are compared: in any order, with doubles to 9 digits."""
    return Counter(tuple(_normal(value) for value in row) for row in rows)


def _normal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat()
    if isinstance(value, int | float | Decimal):
        return f"{float(value):.9g}" if abs(value) < 1 << 52 else str(int(value))
    return repr(value)


def last() -> dict[str, dict[str, Any]]:
    """A record of each stream, of another room and long after all others, to which the watermark advances."""
    seen = BEGUN + dt.timedelta(days=1)
    return {name: {**records[0], "id": 1000, "room": "z", "seen": seen} for name, records in data().items()}


@functools.cache
def _duck(with_last: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name, given in data().items():
        records = [*given, last()[name]] if with_last else given
        rows = [{**one, "seen": one["seen"].replace(tzinfo=None)} for one in records]
        connection.register(name, pa.Table.from_pylist(rows, TYPES[name]))
    return connection


def expected(case: Case, *, with_last: bool = False) -> Counter[tuple[str, ...]]:
    """What DuckDB answers."""
    for name, function in case.functions:
        if f"{name}(" in case.duck_text() and not isinstance(function, ps.AggregateFunction):
            raise AssertionError("give DuckDB a statement without the function")
    return normal(_duck(with_last).execute(case.duck_text()).fetchall())


def rows_of(records: Iterable[Any], upsert_key: tuple[str, ...] | None = None) -> Counter[tuple[str, ...]]:
    """The rows that were written; of a changelog those that are left in its table."""
    if upsert_key is not None:
        newest = {tuple(getattr(one, name) for name in upsert_key): one for one in records}
        records = [one for one in newest.values() if one._change.value != "-D"]
    found: Counter[tuple[str, ...]] = Counter()
    for one in records:
        names = [name for name in one.__struct_fields__ if name != "_change"]
        (row,) = normal([[getattr(one, name) for name in names]])
        change = "+I" if upsert_key is not None or not hasattr(one, "_change") else one._change.value
        found[row] += -1 if change in ("-U", "-D") else 1
    assert all(count >= 0 for count in found.values())
    return +found


def fahrenheit(celsius: float) -> float:
    return celsius * 1.8 + 32


def louder(note: str | None, times: int) -> str | None:
    return None if note is None else note.upper() + "!" * times


class Spread(ps.AggregateFunction[float, list[float], float]):
    """The difference between the largest and the smallest value."""

    def create_accumulator(self) -> list[float]:
        return []

    def add(self, value: float, bounds: list[float]) -> list[float]:
        return [min([value, *bounds]), max([value, *bounds])]

    def get_result(self, bounds: list[float]) -> float | None:
        return bounds[1] - bounds[0] if bounds else None

    def merge(self, a: list[float], b: list[float]) -> list[float]:
        both = a + b
        return [min(both), max(both)] if both else []


AGGREGATES = (
    "COUNT(*) AS c, COUNT(celsius) AS cc, SUM(celsius) AS s, AVG(celsius) AS mean, MIN(celsius) AS low, "
    "MAX(celsius) AS high"
)
GROUPED = "GROUP BY room, window_start, window_end"

CASES = [
    Case("all columns", "SELECT * FROM readings"),
    Case("columns", "SELECT id, room, celsius FROM readings"),
    Case("renamed columns", "SELECT id AS number, room AS place, seen AS time FROM readings"),
    Case("a qualified star", "SELECT r.* FROM readings AS r WHERE r.sensor = 1"),
    Case("qualified columns", "SELECT r.id, r.celsius FROM readings r WHERE r.room = 'a'"),
    Case("where", "SELECT id FROM readings WHERE celsius > 20 AND room IN ('a', 'b')"),
    Case("where with nulls", "SELECT id FROM readings WHERE NOT (celsius > 20 OR n < 0)"),
    Case("is null", "SELECT id FROM readings WHERE note IS NULL OR ok IS NOT NULL"),
    Case("between", "SELECT id FROM readings WHERE celsius BETWEEN 0 AND 10"),
    Case("like", "SELECT id, note FROM readings WHERE note LIKE 'Te%' OR note LIKE '%tim_'"),
    Case("a text with a quote", "SELECT id FROM readings WHERE note = 'it''s'"),
    Case("arithmetic", "SELECT id, celsius * 1.8 + 32 AS fahrenheit, n % 7 AS rest FROM readings WHERE n < 1000"),
    Case("integers", "SELECT id, sensor + 1 AS one, -sensor AS minus, sensor * sensor AS square FROM readings"),
    Case("division", "SELECT id, sensor / 4 AS quarter FROM readings"),
    Case("decimals", "SELECT id, amount + 1 AS more, amount * 2 AS twice FROM readings"),
    Case("case", "SELECT id, CASE WHEN celsius > 30 THEN 'hot' WHEN celsius > 10 THEN 'warm' ELSE 'cold' END AS what FROM readings"),
    Case("simple case", "SELECT id, CASE room WHEN 'a' THEN 1 WHEN 'b' THEN 2 END AS number FROM readings"),
    Case("functions of text", "SELECT id, upper(note) AS up, length(note) AS size, concat(room, '-', note) AS both FROM readings WHERE note IS NOT NULL"),
    Case("joined text", "SELECT id, room || ':' || note AS both FROM readings"),
    Case("coalesce", "SELECT id, coalesce(celsius, 0.0) AS c, nullif(room, 'a') AS r FROM readings"),
    Case("casts", "SELECT id, CAST(sensor AS DOUBLE) AS d, CAST(id AS STRING) AS t FROM readings"),
    Case("times", "SELECT id, seen + INTERVAL '5' MINUTE AS later, year(day) AS y FROM readings WHERE seen > TIMESTAMP '2024-03-01 09:20:00'"),
    Case("greatest", "SELECT id, greatest(sensor, 2) AS g, least(sensor, 2) AS l, abs(n) AS a FROM readings"),
    Case("distinct from", "SELECT id FROM readings WHERE note IS DISTINCT FROM 'Tea'"),
    Case("a parameter", "SELECT id, celsius FROM readings WHERE celsius > ${limit}"),
    Case("parameters of both kinds", "SELECT id, celsius - ${limit} AS above FROM readings WHERE room = ${wanted}"),
    Case("a subquery", "SELECT t.id, t.f FROM (SELECT id, celsius * 2 AS f FROM readings WHERE ok) AS t WHERE t.f > 30"),
    Case("nested subqueries", "SELECT g FROM (SELECT f + 1 AS g FROM (SELECT sensor AS f FROM readings) a) b WHERE g > 2"),
    Case("a query before", "WITH warm AS (SELECT id, celsius FROM readings WHERE celsius > 20) SELECT id FROM warm WHERE celsius < 30"),
    Case("queries before", "WITH a AS (SELECT id, n FROM readings), b AS (SELECT id FROM a WHERE n > 5) SELECT * FROM b"),
    Case("a view", "SELECT id, f FROM warm WHERE f > 70", "SELECT id, celsius * 1.8 + 32 AS f FROM readings WHERE celsius * 1.8 + 32 > 70", "CREATE VIEW warm AS SELECT id, celsius * 1.8 + 32 AS f FROM readings;"),
    Case("a view read twice", "SELECT id FROM w WHERE s = 1 UNION ALL SELECT id FROM w WHERE s = 2", "SELECT id FROM readings WHERE sensor IN (1, 2)", "CREATE VIEW w AS SELECT id, sensor AS s FROM readings;"),
    Case("union all", "SELECT id, room FROM readings WHERE sensor = 1 UNION ALL SELECT id, room FROM readings WHERE sensor = 2"),
    Case("a stream united with itself", "SELECT * FROM visits UNION ALL SELECT * FROM visits"),
    Case("a union of two streams", "SELECT id, room, seen FROM readings UNION ALL SELECT id, room, seen FROM visits"),
    Case("a union of types", "SELECT sensor AS x FROM readings UNION ALL SELECT id FROM visits UNION ALL SELECT celsius FROM readings"),
    Case("a union in a subquery", "SELECT x FROM (SELECT id AS x FROM readings UNION ALL SELECT id FROM visits) u WHERE x > 100"),
    Case("two insertions into one sink", "INSERT INTO out SELECT id FROM readings WHERE ok; INSERT INTO out SELECT id FROM visits", "SELECT id FROM readings WHERE ok UNION ALL SELECT id FROM visits"),
    Case("a declared table", "INSERT INTO typed SELECT sensor, celsius FROM readings", "SELECT CAST(sensor AS BIGINT), celsius FROM readings", "CREATE TABLE typed (a BIGINT, b DOUBLE);"),
    Case("columns of a table by name", "INSERT INTO typed (b, a) SELECT celsius, id FROM readings", "SELECT celsius, id FROM readings", "CREATE TABLE typed (a BIGINT, b DOUBLE);"),
    Case("windows", f"SELECT room, window_start, window_end, {AGGREGATES} FROM {{readings by 5}} {GROUPED}"),
    Case("windows of all records", "SELECT window_start, COUNT(*) AS c FROM {readings by 5} GROUP BY window_start, window_end"),
    Case("windows of decimals", f"SELECT room, SUM(amount) AS s, MIN(amount) AS low, MAX(amount) AS high FROM {{readings by 5}} {GROUPED}"),
    Case("windows of integers", f"SELECT room, SUM(n) AS s, MIN(n) AS low, AVG(sensor) AS mean FROM {{readings by 5}} {GROUPED}"),
    Case("windows of text", f"SELECT room, MIN(note) AS low, MAX(note) AS high, COUNT(note) AS c FROM {{readings by 5}} {GROUPED}"),
    Case("windows of times", f"SELECT room, MIN(seen) AS first, MAX(seen) AS last, MIN(day) AS day, COUNT(ok) AS c FROM {{readings by 5}} {GROUPED}"),
    Case("windows by two keys", "SELECT room, sensor, window_end, COUNT(*) AS c FROM {readings by 5} GROUP BY room, sensor, window_start, window_end"),
    Case("windows by an expression", "SELECT sensor % 2 AS odd, window_start, SUM(celsius) AS s FROM {readings by 5} GROUP BY sensor % 2, window_start, window_end"),
    Case("windows by the name of an item", "SELECT upper(room) AS r, window_start, COUNT(*) AS c FROM {readings by 5} GROUP BY r, window_start, window_end"),
    Case("windows by number", "SELECT room, window_start, COUNT(*) AS c FROM {readings by 5} GROUP BY 1, window_start, window_end"),
    Case("aggregates in expressions", f"SELECT room, MAX(celsius) - MIN(celsius) AS span, 100 * COUNT(celsius) / COUNT(*) AS percent FROM {{readings by 5}} {GROUPED}"),
    Case("aggregates of expressions", f"SELECT room, SUM(celsius * 2 + 1) AS s, MAX(length(note)) AS size FROM {{readings by 5}} {GROUPED}"),
    Case("filtered aggregates", f"SELECT room, COUNT(*) FILTER (WHERE ok) AS c, SUM(celsius) FILTER (WHERE sensor > 1) AS s FROM {{readings by 5}} {GROUPED}"),
    Case("windows of different values", f"SELECT room, window_start, COUNT(DISTINCT sensor) AS d, COUNT(DISTINCT note) AS notes, COUNT(DISTINCT celsius) AS c, COUNT(*) AS n, SUM(sensor) AS s FROM {{readings by 5}} {GROUPED}"),
    Case("sums of different values", f"SELECT room, SUM(DISTINCT sensor) AS s, AVG(DISTINCT celsius) AS mean, SUM(DISTINCT amount) AS a, MIN(DISTINCT n) AS low FROM {{readings hopping}} {GROUPED}"),
    Case("different values of all records", "SELECT window_end, COUNT(DISTINCT room) AS d, COUNT(DISTINCT day) AS days FROM {readings cumulating} GROUP BY window_start, window_end"),
    Case("different values in sessions", f"SELECT room, COUNT(DISTINCT sensor) FILTER (WHERE ok) AS d, SUM(DISTINCT celsius * 2) AS s, COUNT(DISTINCT ok) AS oks FROM {{readings in sessions}} {GROUPED}"),
    Case("groups of different values", "SELECT room, SUM(DISTINCT sensor) AS s, AVG(DISTINCT celsius) AS mean, COUNT(DISTINCT amount) AS a, MAX(DISTINCT n) AS high, SUM(DISTINCT n) FILTER (WHERE n < 9) AS low FROM readings GROUP BY room"),
    Case("having", f"SELECT room, window_start, COUNT(*) AS c FROM {{readings by 5}} {GROUPED} HAVING COUNT(*) > 6 AND MAX(celsius) > ${{limit}}"),
    Case("where before windows", f"SELECT room, window_start, COUNT(*) AS c FROM {{readings by 5}} AS w WHERE w.celsius > 10 {GROUPED}"),
    Case("windows of a view", f"SELECT room, window_start, AVG(f) AS mean FROM TABLE(TUMBLE(TABLE warm, DESCRIPTOR(seen), INTERVAL '5' MINUTE)) {GROUPED}", "SELECT room, time_bucket(INTERVAL 5 MINUTE, seen) AS w, AVG(celsius * 1.8 + 32) FROM readings WHERE celsius > 10 GROUP BY room, w", "CREATE VIEW warm AS SELECT room, seen, celsius * 1.8 + 32 AS f FROM readings WHERE celsius > 10;"),
    Case("windows with an offset", f"SELECT room, window_start, COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '5' MINUTE, INTERVAL '1' MINUTE)) {GROUPED}", "SELECT room, time_bucket(INTERVAL 5 MINUTE, seen, INTERVAL 1 MINUTE) AS w, COUNT(*) FROM readings GROUP BY room, w"),
    Case("windows without TABLE()", f"SELECT room, COUNT(*) AS c FROM TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '5' MINUTE) {GROUPED}", f"SELECT room, COUNT(*) AS c FROM {{readings by 5}} {GROUPED}"),
    Case("windows of a renamed time", f"SELECT room, COUNT(*) AS c FROM TABLE(TUMBLE(TABLE w, DESCRIPTOR(time), INTERVAL '5' MINUTE)) {GROUPED}", f"SELECT room, COUNT(*) AS c FROM {{readings by 5}} {GROUPED}", "CREATE VIEW w AS SELECT room, seen AS time FROM readings;"),
    Case("windows of a union", f"SELECT room, window_start, COUNT(*) AS c FROM TABLE(TUMBLE(TABLE u, DESCRIPTOR(seen), INTERVAL '5' MINUTE)) {GROUPED}", "SELECT room, time_bucket(INTERVAL 5 MINUTE, seen) AS w, COUNT(*) FROM (SELECT room, seen FROM readings UNION ALL SELECT room, seen FROM visits) GROUP BY room, w", "CREATE VIEW u AS SELECT room, seen FROM readings UNION ALL SELECT room, seen FROM visits;"),
    Case("windows of windows", "SELECT window_start, SUM(c) AS s, COUNT(*) AS rooms FROM TABLE(TUMBLE(TABLE w, DESCRIPTOR(time), INTERVAL '10' MINUTE)) GROUP BY window_start, window_end", "SELECT time_bucket(INTERVAL 10 MINUTE, w) AS t, SUM(c), COUNT(*) FROM (SELECT room, time_bucket(INTERVAL 5 MINUTE, seen) AS w, COUNT(*) AS c FROM readings GROUP BY room, w) GROUP BY t", f"CREATE VIEW w AS SELECT room, window_time AS time, COUNT(*) AS c FROM {{readings by 5}} {GROUPED};".replace("{readings by 5}", "TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '5' MINUTE))")),
    Case("hopping windows", f"SELECT room, window_start, window_end, {AGGREGATES} FROM {{readings hopping}} {GROUPED}"),
    Case("cumulating windows", f"SELECT room, window_start, window_end, {AGGREGATES} FROM {{readings cumulating}} {GROUPED}"),
    Case("sessions", f"SELECT room, window_start, window_end, {AGGREGATES} FROM {{readings in sessions}} {GROUPED}"),
    Case("sessions of visits", f"SELECT room, MIN(minutes) AS low, SUM(minutes) AS s FROM {{visits in sessions}} {GROUPED}"),
    Case("groups", "SELECT room, COUNT(*) AS c, SUM(celsius) AS s, MIN(n) AS low, MAX(amount) AS high FROM readings GROUP BY room"),
    Case("groups of nulls", "SELECT note, COUNT(*) AS c, COUNT(DISTINCT sensor) AS d FROM readings GROUP BY note"),
    Case("one group", "SELECT COUNT(*) AS c, AVG(celsius) AS mean FROM readings"),
    Case("groups by an expression", "SELECT sensor % 2 AS odd, SUM(n) AS s FROM readings WHERE n < 100 GROUP BY sensor % 2"),
    Case("groups that are left out", "SELECT room, COUNT(*) AS c FROM readings GROUP BY room HAVING COUNT(*) > 58"),
    Case("groups of groups", "SELECT c, COUNT(*) AS rooms FROM (SELECT sensor, room, COUNT(*) AS c FROM readings GROUP BY sensor, room) t GROUP BY c"),
    Case("groups as upserts", "INSERT INTO kept SELECT room, SUM(celsius) FROM readings GROUP BY room", "SELECT room, SUM(celsius) FROM readings GROUP BY room", "CREATE TABLE kept (room STRING, total DOUBLE, PRIMARY KEY (room) NOT ENFORCED);"),
    Case("filtered groups", "SELECT room, COUNT(*) FILTER (WHERE ok) AS c, SUM(sensor) FILTER (WHERE celsius > 5) AS s FROM readings GROUP BY room"),
    Case("first rows", "SELECT room, id, celsius FROM (SELECT room, id, celsius, ROW_NUMBER() OVER (PARTITION BY room ORDER BY celsius DESC, id) AS r FROM readings WHERE celsius IS NOT NULL) t WHERE r <= 3"),
    Case("first rows with their rank", "SELECT room, id, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY room ORDER BY id DESC) AS r FROM readings) t WHERE t.r < 4"),
    Case("first rows of all", "SELECT id, n FROM (SELECT id, n, ROW_NUMBER() OVER (ORDER BY n DESC, id) AS r FROM readings WHERE n IS NOT NULL) WHERE r <= 5 AND id > 3", "SELECT id, n FROM (SELECT id, n FROM readings WHERE n IS NOT NULL ORDER BY n DESC, id LIMIT 5) WHERE id > 3"),
    Case("first rows of groups", "SELECT room, c FROM (SELECT room, c, ROW_NUMBER() OVER (ORDER BY c DESC, room) AS r FROM (SELECT room, COUNT(*) AS c FROM readings GROUP BY room) g) t WHERE r <= 2"),
    Case("newest rows", "SELECT room, id, seen FROM (SELECT room, id, seen, ROW_NUMBER() OVER (PARTITION BY room ORDER BY seen DESC) AS r FROM readings) t WHERE r = 1"),
    Case("oldest rows", "SELECT sensor, id, seen FROM (SELECT sensor, id, seen, ROW_NUMBER() OVER (PARTITION BY sensor ORDER BY seen) AS r FROM readings) t WHERE r = 1"),
    Case("rows before", "SELECT id, SUM(sensor) OVER (PARTITION BY room ORDER BY seen ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS s, COUNT(celsius) OVER (PARTITION BY room ORDER BY seen ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS c FROM readings"),
    Case("a time before", "SELECT id, MAX(celsius) OVER (PARTITION BY room ORDER BY seen RANGE BETWEEN INTERVAL '2' MINUTE PRECEDING AND CURRENT ROW) AS high FROM readings", "SELECT id, MAX(celsius) OVER (PARTITION BY room ORDER BY seen RANGE BETWEEN INTERVAL 2 MINUTE PRECEDING AND CURRENT ROW) AS high FROM readings"),
    Case("all rows before", "SELECT id, 2 * COUNT(*) OVER (PARTITION BY room ORDER BY seen) AS c FROM readings"),
    Case("different values before", "SELECT id, SUM(DISTINCT sensor) OVER (PARTITION BY room ORDER BY seen ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS s, COUNT(DISTINCT note) OVER (PARTITION BY room ORDER BY seen ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS c FROM readings"),
    Case("an interval join", "SELECT r.id, v.id AS visit, r.celsius FROM readings r JOIN visits v ON r.room = v.room AND v.seen BETWEEN r.seen - INTERVAL '10' SECOND AND r.seen + INTERVAL '30' SECOND"),
    Case("a left interval join", "SELECT r.id, v.minutes, v.id AS visit FROM readings AS r LEFT JOIN visits AS v ON v.room = r.room AND v.seen >= r.seen AND v.seen < r.seen + INTERVAL '20' SECOND"),
    Case("a full interval join", "SELECT r.id, v.id AS visit FROM readings r FULL JOIN visits v ON r.room = v.room AND r.seen BETWEEN v.seen AND v.seen + INTERVAL '5' SECOND"),
    Case("an interval join with a condition", "SELECT r.id, v.id AS visit FROM readings r JOIN visits v ON r.room = v.room AND v.seen BETWEEN r.seen AND r.seen + INTERVAL '1' MINUTE AND v.minutes > r.sensor * 10 WHERE r.celsius > ${limit}"),
    Case("all columns of a join", "SELECT * FROM (SELECT id, room, seen FROM visits) a JOIN (SELECT id AS other, room AS place, seen AS time FROM readings) b ON a.room = b.place AND b.time BETWEEN a.seen AND a.seen + INTERVAL '9' SECOND"),
    Case("groups of a join", "SELECT r.room, COUNT(*) AS c FROM readings r JOIN visits v ON r.room = v.room AND v.seen BETWEEN r.seen AND r.seen + INTERVAL '1' MINUTE GROUP BY r.room"),
    Case("the version of a time", "SELECT r.id, v.minutes FROM readings r JOIN visits FOR SYSTEM_TIME AS OF r.seen AS v ON r.room = v.room", "SELECT r.id, v.minutes FROM readings r ASOF JOIN visits v ON r.room = v.room AND v.seen <= r.seen"),
    Case("the version of a time, or none", "SELECT r.id, v.id AS visit FROM readings r LEFT JOIN visits FOR SYSTEM_TIME AS OF r.seen AS v ON r.room = v.room", "SELECT r.id, v.id FROM readings r ASOF LEFT JOIN visits v ON r.room = v.room AND v.seen <= r.seen"),
    Case("a window join", "SELECT r.id, v.id AS visit, r.window_start FROM {readings by 5} r JOIN {visits by 5} v ON r.room = v.room AND r.window_start = v.window_start AND r.window_end = v.window_end"),
    Case("a left window join", "SELECT r.id, v.id AS visit FROM {readings by 5} r LEFT JOIN {visits by 5} v ON r.room = v.room AND r.window_start = v.window_start AND r.window_end = v.window_end AND v.minutes > 30"),
    Case("items", "SELECT id, item FROM readings CROSS JOIN UNNEST(split(note, ' ')) AS t (item)", "SELECT id, unnest(string_split(note, ' ')) FROM readings"),
    Case("groups of items", "SELECT t.item, COUNT(*) AS c FROM readings AS r CROSS JOIN UNNEST(split(r.note, 'e')) AS t (item) GROUP BY t.item", "SELECT item, COUNT(*) FROM (SELECT unnest(string_split(note, 'e')) AS item FROM readings) GROUP BY item"),
    Case("a scalar function", "SELECT id, fahrenheit(celsius) AS f FROM readings WHERE fahrenheit(celsius) > 50.0", "SELECT id, celsius * 1.8 + 32 AS f FROM readings WHERE celsius * 1.8 + 32 > 50", functions=(("fahrenheit", fahrenheit),)),
    Case("a function of nulls", "SELECT id, louder(note, sensor) AS l FROM readings", "SELECT id, upper(note) || repeat('!', sensor) AS l FROM readings", functions=(("louder", louder),)),
    Case("an aggregate function", f"SELECT room, spread(celsius) AS s, COUNT(*) AS c FROM {{readings by 5}} {GROUPED}", f"SELECT room, MAX(celsius) - MIN(celsius), COUNT(*) FROM {{readings by 5}} {GROUPED}", functions=(("spread", Spread()),)),
]  # fmt: skip
