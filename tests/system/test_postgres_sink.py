"""The PostgreSQL sink on a real server: each record once, whatever happens to tasks, sessions and the server."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import random
import re
import signal
import urllib.parse
from collections.abc import Iterator, Sequence
from decimal import Decimal
from multiprocessing.connection import Connection
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import PASSWORD, PostgresServer

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_sink import PostgresSink
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, TaskContext

READING = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
CHANGE = record_type("_change STRING NOT NULL, sensor BIGINT NOT NULL, celsius DOUBLE")


JUDGE = """
CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}; RETURN NEW; END $$;
CREATE TRIGGER judged BEFORE INSERT ON readings FOR EACH ROW EXECUTE FUNCTION judge();
"""


class Tables:
    """Tables in a separate schema, and sinks that write to them."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        url = server.new_schema()
        self.schema = urllib.parse.unquote(url).rpartition("=")[2]
        self.connection = psycopg.connect(url, autocommit=True)

    def binding(self, table: str = "readings", *, user: str = "", **parameters: str) -> PostgresBinding:
        query = urllib.parse.urlencode(parameters)
        login = user or f"tester:{PASSWORD}"
        uri = f"postgresql://{login}@127.0.0.1:{self.server.port}/postgres/{self.schema}.{table}"
        found = parse_binding("alerts", f"{uri}?{query}" if query else uri, "sink")
        assert isinstance(found, PostgresBinding)
        return found

    def sink(
        self, kind: RecordType = READING, key: Sequence[str] | None = None, **parameters: str
    ) -> PostgresSink:
        sink = PostgresSink(self.binding(**{"create_table": "true", **parameters}), kind, key)
        sink.prepare("line", "")
        return sink

    def rows(self, what: str = "*", table: str = "readings") -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT {what} FROM {table} ORDER BY 1").fetchall()


@pytest.fixture
def tables(postgres: PostgresServer) -> Iterator[Tables]:
    found = Tables(postgres)
    yield found
    found.connection.close()


def readings(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(READING.field_names, row, strict=True)) for row in rows], READING.schema
    )


def changes(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(CHANGE.field_names, row, strict=True)) for row in rows], CHANGE.schema
    )


def begin(sink: PostgresSink, batch: int, partition: int = 0) -> RejectingTask:
    task = sink.task(TaskContext(batch, partition, 0, "line"), READING)
    assert isinstance(task, RejectingTask)
    return task


def write(sink: PostgresSink, batch: int, *blocks: pa.RecordBatch, partition: int = 0) -> list[Rejection]:
    """Write a micro-batch of one sink partition."""
    task, rejected = begin(sink, batch, partition), []
    for block in blocks:
        task.write(block, None)
        rejected += task.rejections()
    task.finish()
    return rejected


def test_each_record_is_a_row_once(tables: Tables) -> None:
    """This includes a task that is repeated after its commit; the sink knows its newest micro-batch."""
    sink = tables.sink()
    assert sink.newest("line", "") == -1
    blocks = readings((1, 20.5, "a"), (2, None, None)), readings((3, float("inf"), 'quoted "x",\n\\.'))
    write(sink, 0, *blocks)
    write(sink, 0, *blocks)
    write(sink, 0, readings((4, 1.0, "")), partition=1)
    assert tables.rows() == [
        (1, 20.5, "a"),
        (2, None, None),
        (3, float("inf"), 'quoted "x",\n\\.'),
        (4, 1.0, ""),
    ]
    write(sink, 1, readings((1, 21.0, "a")))
    assert tables.rows("sensor") == [(1,), (1,), (2,), (3,), (4,)]
    assert sink.newest("line", "") == 1
    assert sink.newest("another", "") == -1


def test_a_task_that_ends_before_its_commit_leaves_nothing(tables: Tables) -> None:
    """Its rows were never visible, and the next attempt writes them."""
    sink = tables.sink()
    task = begin(sink, 0)
    task.write(readings((1, 1.0, "a")), None)
    assert tables.rows() == []
    task.abort()
    write(sink, 0, readings((1, 1.0, "a")))
    assert tables.rows("sensor") == [(1,)]


def test_the_last_record_of_a_key_stays(tables: Tables) -> None:
    """This holds within a block, over blocks, and over micro-batches; other columns of the table keep their
    values.
    """
    sink = tables.sink(upsert_by="sensor")
    tables.connection.execute("ALTER TABLE readings ADD COLUMN seen boolean DEFAULT true")
    write(sink, 0, readings((1, 1.0, "a"), (2, 1.0, "b"), (1, 2.0, "a")), readings((2, 3.0, "b")))
    tables.connection.execute("UPDATE readings SET seen = false")
    write(sink, 1, readings((2, 4.0, None), (3, 1.0, "c")))
    assert tables.rows() == [(1, 2.0, "a", False), (2, 4.0, None, False), (3, 1.0, "c", True)]


def test_changes_update_and_delete_rows(tables: Tables) -> None:
    """The row of a key is as its last change says."""
    sink = tables.sink(CHANGE, ("sensor",))
    write(sink, 0, changes(("+U", 1, 1.0), ("+U", 2, 1.0), ("+U", 3, 1.0)))
    write(
        sink,
        1,
        changes(("-D", 1, 1.0), ("+U", 2, 2.0)),
        changes(("-D", 2, 2.0), ("+U", 1, 5.0), ("-D", 9, 0.0)),
    )
    assert tables.rows() == [(1, 5.0), (3, 1.0)]


def test_what_the_table_refuses_is_rejected_record_by_record(tables: Tables) -> None:
    """A replay rejects the same records, even if the table would accept them by then."""
    tables.connection.execute(
        "CREATE TABLE readings (sensor smallint PRIMARY KEY, celsius float CHECK (celsius < 100), room varchar(3))"
    )
    sink = tables.sink()
    rows = [(number, 20.0, "a") for number in range(500)]
    rows[3], rows[77], rows[400] = (70_000, 1.0, "a"), (77, 200.0, "a"), (400, 1.0, "long")
    rows[401] = (401, 1.0, "a\0b")
    again = readings((5, 1.0, "b"), (600, 1.0, "b"))
    rejected = write(sink, 0, readings(*rows), again)
    assert [one.row for one in rejected] == [3, 77, 400, 401, 0]
    assert 'refuses the record: value "70000" is out of range for type smallint' in rejected[0].reason
    assert 'violates check constraint "readings_celsius_check"' in rejected[1].reason
    assert "value too long for type character varying(3)" in rejected[2].reason
    assert "Key (sensor)=(5) already exists" in rejected[4].reason
    assert json.loads(rejected[0].raw) == {"sensor": 70_000, "celsius": 1.0, "room": "a"}
    assert len(tables.rows()) == 497

    tables.connection.execute("ALTER TABLE readings ALTER COLUMN sensor TYPE bigint")
    assert write(sink, 0, readings(*rows), again) == rejected
    assert len(tables.rows()) == 497


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE UNIQUE INDEX ON readings (room)", "index row requires .* bytes, maximum size is"),
        (
            JUDGE.format("IF length(NEW.room) > 9 THEN RAISE 'too long' USING ERRCODE = 'ROOM1'; END IF"),
            "too long",
        ),
        (
            JUDGE.format("ASSERT length(NEW.room) < 9"),
            "assertion failed",
        ),
    ],
)
def test_limits_and_triggers_refuse_one_record(tables: Tables, statement: str, reason: str) -> None:
    """Errors that a retry cannot fix are the record's, not the server's."""
    sink = tables.sink()
    tables.connection.execute(statement)
    rejected = write(sink, 0, readings((1, 1.0, "a"), (2, 1.0, random.Random(1).randbytes(9000).hex())))
    assert [one.row for one in rejected] == [1]
    assert re.search(reason, rejected[0].reason)
    assert tables.rows("sensor") == [(1,)]


@pytest.mark.parametrize("takes_nulls", [False, True])
def test_a_key_with_a_null_replaces_its_row_or_is_rejected(tables: Tables, takes_nulls: bool) -> None:
    """With a unique index that treats nulls as distinct, each such record would add a row."""
    more = "NULLS NOT DISTINCT" if takes_nulls else ""
    tables.connection.execute(f"CREATE TABLE readings (sensor int, celsius float, room text UNIQUE {more})")
    kind = record_type("_change STRING NOT NULL, celsius DOUBLE, room STRING")
    sink = tables.sink(kind, ("room",))

    def rows(*found: tuple[Any, ...]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [dict(zip(kind.field_names, row, strict=True)) for row in found], kind.schema
        )

    rejected = write(sink, 0, rows(("+U", 1.0, None), ("+U", 2.0, "a"), ("+U", 3.0, None)))
    assert [one.row for one in rejected] == ([] if takes_nulls else [0, 2])
    assert tables.rows("celsius") == ([(2.0,), (3.0,)] if takes_nulls else [(2.0,)])
    write(sink, 1, rows(("-D", 3.0, None), ("+U", 4.0, "a")))
    assert tables.rows("celsius") == [(4.0,)]


def test_a_column_that_is_widened_takes_its_values_at_once(tables: Tables) -> None:
    """The connection and its staging table are those of the previous micro-batch."""
    tables.connection.execute("CREATE TABLE readings (sensor int PRIMARY KEY, celsius float, room text)")
    sink = tables.sink(upsert_by="sensor")
    assert len(write(sink, 0, readings((1, 1.0, "a"), (2**40, 1.0, "a")))) == 1
    tables.connection.execute("ALTER TABLE readings ALTER sensor TYPE bigint")
    assert write(sink, 1, readings((2**40, 1.0, "a"))) == []
    assert tables.rows("sensor") == [(1,), (2**40,)]


def test_all_types_come_as_they_are(tables: Tables) -> None:
    """The sink has created the table."""
    kind = record_type(
        "flag BOOLEAN, small SMALLINT, big BIGINT, price DECIMAL(38, 18), at TIMESTAMP, day DATE, raw BINARY, "
        "list ARRAY<DOUBLE>, map MAP<STRING, BIGINT>"
    )
    row = {
        "flag": True,
        "small": -3,
        "big": 2**63 - 1,
        "price": Decimal("12345678901234567890.123456789012345678"),
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        "day": dt.date(1, 1, 1),
        "raw": b"\x00\xff'\\",
        "list": [1.5, None],
        "map": {"a": 1},
    }
    write(tables.sink(kind), 0, pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], kind.schema))
    names = list(row)
    found = [dict(zip(names, values, strict=True)) for values in tables.rows()]
    assert found == [row, dict.fromkeys(row)]


@pytest.mark.parametrize(
    ("creation", "parameters", "expected"),
    [
        (
            None,
            {"create_table": "false"},
            r"does not exist.* create_table=true .* CREATE TABLE IF NOT EXISTS .*",
        ),
        (
            "CREATE TABLE readings (sensor int, room text)",
            {},
            r"no column celsius; .* ADD COLUMN .celsius. double",
        ),
        (
            "CREATE TABLE readings (sensor int, celsius float, room text, hall int NOT NULL)",
            {},
            "needs a value for hall",
        ),
        (
            "CREATE TABLE readings (sensor int, celsius float, room text)",
            {"upsert_by": "sensor,room"},
            r"checked at once has exactly these columns. Run: CREATE UNIQUE INDEX ON .*\(.sensor., .room.\)",
        ),
        (
            "CREATE TABLE readings (sensor int UNIQUE DEFERRABLE, celsius float, room text)",
            {"upsert_by": "sensor"},
            "no unique index that is checked at once",
        ),
        (
            "CREATE TABLE readings (sensor int, celsius float, room text, UNIQUE (sensor) INCLUDE (room))",
            {"upsert_by": "sensor,room"},
            "no unique index that is checked at once",
        ),
        (
            "CREATE TABLE readings (sensor int, celsius float, room text GENERATED ALWAYS AS ('a') STORED)",
            {},
            "computes room itself",
        ),
        (
            "CREATE TABLE readings (sensor int GENERATED ALWAYS AS IDENTITY UNIQUE, celsius float, room text)",
            {"upsert_by": "sensor"},
            "ALTER COLUMN .sensor. SET GENERATED BY DEFAULT",
        ),
        (
            "CREATE VIEW readings AS SELECT 1 AS sensor, 1.5::float AS celsius, 'a'::text AS room",
            {},
            "is a view, which takes no rows. Name a table",
        ),
        (
            None,
            {"upsert_by": "hall"},
            "upsert_by names hall, but the records have only sensor, celsius, room",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_told_at_the_start(
    tables: Tables, creation: str | None, parameters: dict[str, str], expected: str
) -> None:
    """The error has the statement that repairs it."""
    if creation is not None:
        tables.connection.execute(creation)
    with pytest.raises(BindingError, match=expected):
        tables.sink(**parameters)


def test_a_login_that_is_refused_is_told_without_the_password(tables: Tables) -> None:
    """The error is the user's fault; that of an unresponsive server is not."""
    sink = PostgresSink(tables.binding(user="tester:wr0ng"), READING)
    with pytest.raises(BindingError, match=r"refuses the login .*authentication failed") as error:
        sink.prepare("line", "")
    assert "wr0ng" not in str(error.value)
    with pytest.raises(PlaceMissingError, match="does not exist"):
        PostgresSink(tables.binding("nothing"), READING).prepare("line", "")


def test_a_password_comes_from_the_environment(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing displayed has it."""
    monkeypatch.setenv("ALERTS_PASSWORD", PASSWORD)
    binding = tables.binding(user="tester", password="env:ALERTS_PASSWORD", create_table="true")
    PostgresSink(binding, READING).prepare("line", "")
    assert PASSWORD not in repr(binding)


def test_a_user_without_rights_is_told_which(tables: Tables) -> None:
    """The rights concern the table and the progress table; otherwise a job would fail at its first record."""
    tables.connection.execute("CREATE TABLE readings (sensor int, celsius float, room text)")
    role = f"poor_{tables.schema}"
    tables.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    tables.connection.execute(f"GRANT USAGE ON SCHEMA {tables.schema} TO {role}")
    tables.connection.execute(f"GRANT SELECT ON readings TO {role}")
    sink = PostgresSink(tables.binding(user=f"{role}:p"), READING)
    with pytest.raises(
        BindingError, match=rf"user {role} may not write to .* Run: GRANT INSERT ON .* TO .{role}"
    ):
        sink.prepare("line", "")
    tables.connection.execute(f"GRANT INSERT ON readings TO {role}")
    with pytest.raises(BindingError, match=rf"user {role} cannot prepare .* It needs CREATE in the schema"):
        sink.prepare("line", "")


def _stand_still(sink: PostgresSink, ready: Connection) -> None:
    """Write without finishing, like a worker suspended during its task."""
    task = begin(sink, 0)
    task.write(readings((1, 1.0, "stale")), None)
    ready.send(None)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        task.finish()
    except ExternalSystemError as e:
        ready.send(str(e))
    else:
        ready.send("")


def test_a_task_that_stands_still_keeps_nobody_waiting(tables: Tables) -> None:
    """Its session locks the rows that the next attempt writes; when it resumes, it writes nothing."""
    sink = tables.sink(upsert_by="sensor")
    here, there = multiprocessing.Pipe()
    stale = multiprocessing.get_context("spawn").Process(target=_stand_still, args=(sink, there))
    stale.start()
    try:
        assert here.poll(30)
        here.recv()
        os.waitid(os.P_PID, stale.pid or 0, os.WSTOPPED | os.WNOWAIT)
        write(sink, 0, readings((1, 2.0, "new")))
        os.kill(stale.pid or 0, signal.SIGCONT)
        assert here.poll(30)
        assert "cannot be written" in here.recv()
    finally:
        stale.kill()
        stale.join()
    assert tables.rows() == [(1, 2.0, "new")]


def test_a_server_that_was_gone_is_used_again(tables: Tables, postgres: PostgresServer) -> None:
    """Uncommitted rows are written again, on a new connection."""
    sink = tables.sink()
    write(sink, 0, readings((1, 1.0, "a")))
    task = begin(sink, 1)
    task.write(readings((2, 1.0, "a")), None)
    postgres.kill()
    try:
        with pytest.raises(ExternalSystemError, match="What was not committed is written again"):
            task.finish()
        task.abort()
        with pytest.raises(ExternalSystemError, match="does not answer"):
            write(sink, 1, readings((2, 1.0, "a")))
    finally:
        postgres.start()
    tables.connection = psycopg.connect(
        f"{postgres.url('postgres')}?options=-csearch_path%3D{tables.schema}", autocommit=True
    )
    write(sink, 1, readings((2, 1.0, "a")))
    assert tables.rows("sensor") == [(1,), (2,)]


def test_random_attempts_write_each_record_once(tables: Tables) -> None:
    """Tasks end anywhere, are repeated after their commit, or run beside another attempt."""
    chance = random.Random(4)
    sink, expected = tables.sink(), []
    for batch in range(40):
        blocks = [
            readings(*((batch * 1000 + block * 100 + n, 1.0, "a") for n in range(chance.randrange(4))))
            for block in range(3)
        ]
        expected += [(row["sensor"],) for block in blocks for row in block.to_pylist()]
        while chance.random() < 0.4:
            task = begin(sink, batch)
            for block in blocks[: chance.randrange(4)]:
                task.write(block, None)
            task.abort()
        beside = begin(sink, batch) if chance.random() < 0.3 else None
        if beside is not None:
            beside.write(blocks[0], None)
        write(sink, batch, *blocks)
        if beside is not None and len(blocks[0]):
            for block in blocks[1:]:
                beside.write(block, None)
            with pytest.raises(ExternalSystemError, match="another attempt has written micro-batch"):
                beside.finish()
            beside.abort()
        while chance.random() < 0.3:
            write(sink, batch, *blocks)
    assert tables.rows("sensor") == expected


def test_doctor_says_whether_the_table_is_there(tables: Tables) -> None:
    """It does not create it."""
    tables.connection.execute("CREATE TABLE readings (sensor int)")
    found = check_binding("alerts", tables.binding(), is_source=False)
    assert (found.status, found.found) == (
        "ok",
        f"127.0.0.1:{tables.server.port} has the table {tables.schema}.readings",
    )
    missing = check_binding("alerts", tables.binding("nothing"), is_source=False)
    assert missing.status == "failed"
    later = check_binding("alerts", tables.binding("nothing", create_table="true"), is_source=False)
    assert later.status == "ok"
    assert later.found.endswith("does not exist yet; the job creates it")
    assert tables.rows("count(*)", "pg_tables WHERE tablename = 'nothing'") == [(0,)]
