"""PostgreSQL lookup tables on a real server: bulk queries, caching, and both modes."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from job_in_session import JobInSession
from postgres_server import PASSWORD, PostgresServer
from pyspark.sql import SparkSession

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.databases.looked_up_table import PostgresLookup
from penstock.doctor.bindings import examine_bindings
from penstock.errors import BindingError, ExternalSystemError, PenstockError, PlaceMissingError
from penstock.jobs.job_loader import load_job
from penstock.jobs.settings import RunSettings
from penstock.joins.lookup_source import BETWEEN_ROWS, LookupKeys, forget_rows, rows_of_keys
from penstock.records.schemas import record_type

JOB = """
import penstock as ps

job = ps.Job("floors")
readings = job.data_stream("readings", schema="room STRING, n INT")
rooms = job.lookup_table("rooms", schema="id STRING, floor INT")
readings.lookup_join("floors", rooms, on=("room", "id"), how="left", fields=["n", "floor"]).sink_to("known")
"""
SQL = """
CREATE STREAM readings (room STRING, n INT);
CREATE TABLE rooms (id STRING, floor INT);
INSERT INTO known SELECT r.n, d.floor FROM readings AS r
LEFT JOIN rooms FOR SYSTEM_TIME AS OF PROCTIME() AS d ON r.room = d.id;
"""


class Lookups:
    """A schema of its own, with a table of rooms."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        url = server.new_schema()
        self.schema = urllib.parse.unquote(url).rpartition("=")[2]
        self.connection = psycopg.connect(url, autocommit=True)
        self.execute("CREATE TABLE rooms (id text PRIMARY KEY, floor int)")

    def execute(self, statement: Any) -> list[tuple[Any, ...]]:
        done = self.connection.execute(statement)
        return done.fetchall() if done.description else []

    def uri(self, table: str = "rooms", login: str = "", **parameters: object) -> str:
        query = urllib.parse.urlencode(parameters)
        login = login or f"tester:{PASSWORD}"
        place = f"{login}@127.0.0.1:{self.server.port}/postgres/{self.schema}.{table}"
        return f"postgresql://{place}?{query}" if query else f"postgresql://{place}"

    def source(
        self, fields: str, table: str = "rooms", login: str = "", **parameters: object
    ) -> PostgresLookup:
        binding = parse_binding("rooms", self.uri(table, login, **parameters), "lookup")
        assert isinstance(binding, PostgresBinding)
        return PostgresLookup.of(binding, record_type(fields).schema)


@pytest.fixture
def lookups(postgres: PostgresServer) -> Iterator[Lookups]:
    found = Lookups(postgres)
    yield found
    found.connection.close()


def rows(source: PostgresLookup, fields: tuple[str, ...], *keys: tuple[Any, ...]) -> list[list[Any]]:
    found = source.find(fields, keys_of(*keys))
    return [[json.loads(row) for row in one.split(BETWEEN_ROWS) if row] for one in found]


def keys_of(*keys: tuple[Any, ...]) -> LookupKeys:
    return LookupKeys.of(list(zip(*keys, strict=True)))


def test_many_keys_are_found_with_one_query(lookups: Lookups) -> None:
    """This holds for any number of keys, with the table's values; impossible keys are reported missing."""
    lookups.execute("INSERT INTO rooms SELECT 'room-' || n, n FROM generate_series(0, 29999) AS n")
    source = lookups.source("id STRING, floor INT")
    odd = ["nul\0", "", "'; DROP TABLE rooms; --%s", '","', "\\", '\\"', "{}", "NULL"]
    keys = [f"room-{n}" for n in range(0, 40_000, 2)] + odd
    lookups.execute("INSERT INTO rooms VALUES ('\"\\,\"', -1), ('NULL', -2)")
    before = lookups.execute("SELECT count(*) FROM rooms")
    found = dict(zip(keys, source.find(("id",), keys_of(*((key,) for key in keys))), strict=True))
    assert {key: json.loads(row) for key, row in found.items() if row} == {
        **{f"room-{n}": {"id": f"room-{n}", "floor": n} for n in range(0, 30_000, 2)},
        "NULL": {"id": "NULL", "floor": -2},
    }
    assert lookups.execute("SELECT count(*) FROM rooms") == before
    asked = lookups.execute(
        f"SELECT query FROM pg_stat_activity WHERE application_name = 'penstock rooms' AND query ~ '{lookups.schema}'"
    )
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("column", "field", "values", "absent"),
    [
        ("uuid", "STRING", ["0d8ba9c8-3b2c-4d0e-9a64-6f6f0b9d1f11"], ["no uuid", "{}"]),
        ("smallint", "INT", [5, -3], [70_000]),
        ("bigint", "TINYINT", [5], [7]),
        ("integer", "BIGINT", [5], [2**40]),
        ("varchar(9)", "STRING", ["a", ""], ["b"]),
        ("date", "DATE", [dt.date(2026, 2, 28)], [dt.date(1, 1, 1)]),
        ("timestamptz", "TIMESTAMP", [dt.datetime(2026, 2, 28, 1, 2, 3, 4, dt.UTC)], []),
        ("numeric(9, 2)", "DECIMAL(9, 2)", [decimal.Decimal("1.50")], [decimal.Decimal("1.51")]),
        ("boolean", "BOOLEAN", [True], [False]),
    ],
)
def test_keys_of_each_type(
    lookups: Lookups, column: str, field: str, values: list[Any], absent: list[Any]
) -> None:
    """They are compared with the column in its own type."""
    lookups.execute(f"CREATE TABLE keys (key {column} PRIMARY KEY, n int)")
    for number, value in enumerate(values):
        lookups.connection.execute(f"INSERT INTO keys VALUES (%s::{column}, %s)", (value, number))  # type: ignore[call-overload,unused-ignore]
    source = lookups.source(f"key {field}, n INT", "keys")
    source.check(("key",))
    found = rows(source, ("key",), *((value,) for value in [*values, *absent]))
    assert [[row["n"] for row in one] for one in found] == [
        *([n] for n in range(len(values))),
        *([] for _ in absent),
    ]


def test_keys_of_several_columns_and_views(lookups: Lookups) -> None:
    """A view may have several rows for a key, which makes the record a dead letter; a table has one."""
    lookups.execute("CREATE TABLE cities (land text, code int, name text, PRIMARY KEY (code, land))")
    lookups.execute("INSERT INTO cities VALUES ('de', 1, 'Bonn'), ('fr', 1, 'Lyon'), ('fr', 2, 'Nice')")
    source = lookups.source("land STRING, code INT, name STRING", "cities")
    source.check(("land", "code"))
    found = rows(source, ("land", "code"), ("fr", 1), ("de", 1), ("de", 2))
    assert [[row["name"] for row in one] for one in found] == [["Lyon"], ["Bonn"], []]
    lookups.execute("CREATE VIEW lands AS SELECT land, name FROM cities")
    view = lookups.source("land STRING, name STRING", "lands")
    view.check(("land",))
    assert list(map(len, rows(view, ("land",), ("de",), ("fr",)))) == [1, 2]


def test_a_document_with_line_ends_is_in_one_row(lookups: Lookups) -> None:
    """It is returned in the server's form, beside other rows."""
    lookups.execute("CREATE TABLE plans (id int PRIMARY KEY, plan json)")
    lookups.execute("""INSERT INTO plans SELECT n, '{\n"a":\r\n 1}' FROM generate_series(1, 2500) AS n""")
    source = lookups.source("id INT, plan STRUCT<a: INT>", "plans")
    found = rows(source, ("id",), *((n,) for n in range(2500, -1, -1)))
    assert found == [[{"id": n, "plan": {"a": 1}}] for n in range(2500, 0, -1)] + [[]]


@pytest.mark.parametrize(
    ("table", "fields", "by", "told"),
    [
        ("nothing", "id STRING", ("id",), "does not exist"),
        ("rooms", "id STRING, area INT", ("id",), "has no column area; it has id, floor"),
        ("rooms", "id STRING, floor DATE", ("id",), "floor is integer, and the field takes date"),
        ("rooms", "id STRING, floor INT", ("floor",), r'CREATE UNIQUE INDEX ON "\w+"."rooms" \("floor"\)'),
        ("odd", "key STRING", ("key",), "is to be looked up by key, which is inet, with keys of string"),
        ("odd", "number DOUBLE", ("number",), "Look up by another field"),
    ],
)
def test_what_is_wrong_with_a_table_is_told(
    lookups: Lookups, table: str, fields: str, by: tuple[str, ...], told: str
) -> None:
    """The error comes at the start of a job, with the remedy."""
    lookups.execute("CREATE TABLE odd (key inet PRIMARY KEY, number float8 UNIQUE)")
    with pytest.raises((BindingError, PlaceMissingError), match=told):
        lookups.source(fields, table).check(by)


def test_rights_and_logins_are_checked(lookups: Lookups) -> None:
    """The message does not have the password."""
    lookups.execute(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 'pw';"
        f"GRANT USAGE ON SCHEMA {lookups.schema} TO reader"
    )
    source = lookups.source("id STRING, floor INT", login="reader:pw")
    with pytest.raises(BindingError, match=r'GRANT SELECT ON "\w+"."rooms" TO "reader"'):
        source.check(("id",))
    lookups.execute(f"GRANT SELECT ON {lookups.schema}.rooms TO reader")
    source.check(("id",))
    with pytest.raises(BindingError, match="refuses the login") as e:
        lookups.source("id STRING, floor INT", login="reader:wr0ng").check(("id",))
    assert "wr0ng" not in str(e.value)


def test_rows_are_kept_for_a_while(lookups: Lookups) -> None:
    """Missing rows are cached too; the cache holds so many keys, and can be cleared."""
    lookups.execute("INSERT INTO rooms VALUES ('a', 1), ('b', 2), ('c', 3)")
    source = lookups.source("id STRING, floor INT", cache_s=10, cache_rows=2)
    now = 0.0

    def floors(*names: str) -> list[list[int]]:
        found = rows_of_keys(source, ("id",), LookupKeys.of([names]), lambda: now)
        return [[json.loads(row)["floor"]] if row else [] for row in found]

    assert floors("a", "x") == [[1], []]
    lookups.execute("UPDATE rooms SET floor = 10 * floor; INSERT INTO rooms VALUES ('x', 9)")
    now = 9.9
    assert floors("a", "x") == [[1], []]
    now = 10.0
    assert floors("a", "x") == [[10], [9]]
    lookups.execute("UPDATE rooms SET floor = 0")
    # The least recently used key is evicted.
    assert floors("x", "c") == [[9], [0]]
    assert floors("x", "c", "a") == [[9], [0], [0]]
    forget_rows(source)
    assert floors("x") == [[0]]


def test_a_server_that_was_gone_is_asked_again() -> None:
    """It is retried for retry_s; a dropped table is not waited for."""
    with PostgresServer() as server:
        lookups = Lookups(server)
        lookups.execute("INSERT INTO rooms VALUES ('a', 1)")
        source = lookups.source("id STRING, floor INT", retry_s=30)
        assert rows(source, ("id",), ("a",)) == [[{"id": "a", "floor": 1}]]
        lookups.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock rooms'"
        )
        assert rows(source, ("id",), ("a",)) == [[{"id": "a", "floor": 1}]]
        lookups.connection.close()
        server.kill()
        back = threading.Timer(1.0, server.start)
        back.start()
        assert rows(source, ("id",), ("a",)) == [[{"id": "a", "floor": 1}]]
        back.join()
        short = lookups.source("id STRING, floor INT", retry_s=1)
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP TABLE {lookups.schema}.rooms")  # type: ignore[call-overload,unused-ignore]
        began = time.monotonic()
        with pytest.raises(ExternalSystemError, match="cannot be read"):
            rows(source, ("id",), ("a",))
        assert time.monotonic() - began < 10
        server.kill()
        with pytest.raises(ExternalSystemError, match="does not answer"):
            rows(short, ("id",), ("a",))


def test_a_job_looks_records_up_in_both_modes(tmp_path: Path, spark: SparkSession, lookups: Lookups) -> None:
    """Results equal SQL's, with the table's current content, and the checkpoint has no secret."""
    (tmp_path / "floors.sql").write_text(SQL)
    (tmp_path / "in").mkdir()
    lookups.execute("INSERT INTO rooms SELECT 'r' || n, n FROM generate_series(0, 99) AS n")
    (tmp_path / "password").write_text(PASSWORD)
    uri = lookups.uri(login="tester", password=f"file:{tmp_path}/password", cache_s=1)
    expected: dict[int, int | None] = {}
    for number, settings in enumerate(({}, {"checkpoint_interval_ms": 1000})):
        lines = [{"room": f"r{n % 120}", "n": 1000 * number + n} for n in range(600)]
        expected |= {
            line["n"]: n % 120 + 100 * number if n % 120 < 100 else None for n, line in enumerate(lines)
        }  # type: ignore[misc]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        bindings = {
            "readings": f"jsonl:{tmp_path}/in",
            "rooms": uri,
            "known": f"jsonl:{tmp_path}/out",
        }
        given: dict[str, Any] = {**settings, "bindings": bindings, "checkpoint": str(tmp_path / "state")}
        with JobInSession(spark, tmp_path / "floors.sql", RunSettings(bounded=True, **given)) as job:
            job.wait()
        lookups.execute("UPDATE rooms SET floor = floor + 100")
        # Wait until the session's workers have dropped their cached rows.
        time.sleep(1)
    found = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert {one["n"]: one.get("floor") for one in found} == expected
    assert len(found) == len(expected)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert PASSWORD.encode() not in kept


def test_doctor_looks_at_lookup_tables(tmp_path: Path, lookups: Lookups) -> None:
    """It also says whether the fields named by the job can be used for lookups."""
    (tmp_path / "job.py").write_text(JOB)
    job = load_job(str(tmp_path / "job.py")).job
    given = {"readings": f"jsonl:{tmp_path}", "known": f"jsonl:{tmp_path}/out"}
    (fine,) = (
        one for one in examine_bindings(job, {**given, "rooms": lookups.uri()}) if one.check == "-D rooms"
    )
    assert "can be looked up" in str(fine)
    lookups.execute("ALTER TABLE rooms DROP CONSTRAINT rooms_pkey")
    (wrong,) = (
        one for one in examine_bindings(job, {**given, "rooms": lookups.uri()}) if one.check == "-D rooms"
    )
    assert "CREATE UNIQUE INDEX" in str(wrong)


def test_a_lookup_table_needs_a_binding_of_a_scheme_that_has_one() -> None:
    """The message names such schemes."""
    with pytest.raises(PenstockError, match=r"jsonl: is only for"):
        parse_binding("rooms", "jsonl:rooms", "lookup")
