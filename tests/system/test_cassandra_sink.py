"""The Cassandra sink on a real node: rows have the newest records, whatever happens to tasks, runs and the
node.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cassandra_server import KEYSPACE, CassandraServer
from versioned_rows import CHANGE, READING, rows, started_sink, write

from penstock.bindings.parse import parse_binding
from penstock.bindings.versioned_types import CassandraBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.machine.local_server import free_port
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import Sink, TaskContext

# The node takes many seconds to start.
pytestmark = pytest.mark.chaos
COLUMNS = "sensor bigint PRIMARY KEY, celsius double, room text"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    with CassandraServer(tmp_path_factory.mktemp("cassandra")) as started:
        yield started


@pytest.fixture(scope="module")
def session(server: CassandraServer) -> Iterator[Any]:
    with server.cluster() as cluster:
        found = cluster.connect(KEYSPACE)
        found.default_timeout = 60
        yield found


_numbers = itertools.count(1)


@pytest.fixture
def table(session: Any) -> str:
    """Return a new table."""
    return created(session, COLUMNS)


def created(session: Any, columns: str) -> str:
    name = f"t{next(_numbers)}"
    session.execute(f"CREATE TABLE {name} ({columns})")
    return name


def bind(uri: str) -> CassandraBinding:
    found = parse_binding("latest", uri, "sink")
    assert isinstance(found, CassandraBinding)
    return found


def opened(uri: str, kind: RecordType = READING, key: Sequence[str] | None = None) -> Sink:
    """Return the sink of a run that has just begun."""
    return started_sink(bind(uri), kind, key)


def found(session: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.execute(f"SELECT * FROM {table}"))


def test_a_row_has_the_last_record(server: CassandraServer, session: Any, table: str) -> None:
    """A null clears its column; rewriting changes nothing, and neither does a late write of an older version."""
    sink = opened(server.uri(table))
    first = rows(READING, (1, 20.5, "a"), (2, 1.0, None), (1, 21.0, "b"))
    second = rows(READING, (1, 22.0, None), (3, 1e20, "q'é"))
    expected = [(1, 22.0, None), (2, 1.0, None), (3, 1e20, "q'é")]
    for _ in range(2):
        assert write(sink, 1000, first, second) == []
        assert found(session, table) == expected
    write(sink, 900, first, second, rows(READING, (2, 7.0, "zombie")))
    assert found(session, table) == expected
    write(sink, 2000, rows(READING, (1, None, "c")))
    assert found(session, table)[0] == (1, None, "c")
    stamps = session.execute(f"SELECT writetime(celsius) FROM {table} WHERE sensor = 3").one()
    assert stamps[0] == 1004


def test_upserts_replace_and_delete(server: CassandraServer, session: Any) -> None:
    """The last change of a key counts; a key deleted by it stays deleted though an older attempt inserts it
    late.
    """
    table = created(session, "sensor bigint PRIMARY KEY, celsius double")
    sink = opened(server.uri(table), CHANGE, ["sensor"])
    write(
        sink, 100, rows(CHANGE, ("+U", 1, 1.0), ("+U", 2, 2.0)), rows(CHANGE, ("-D", 1, 1.0), ("+U", 2, 3.0))
    )
    write(sink, 200, rows(CHANGE, ("-D", 3, 1.0), ("+U", 4, 1.0), ("-D", 4, 1.0), ("+U", 4, 2.0)))
    write(sink, 100, rows(CHANGE, ("+U", 1, 1.0)))
    assert found(session, table) == [(2, 3.0), (4, 2.0)]


def test_each_type_has_its_column(server: CassandraServer, session: Any) -> None:
    """Covered are clustering columns, frozen lists, sets, maps, and records as JSON."""
    kind = record_type(
        "id STRING NOT NULL, at TIMESTAMP NOT NULL, small INT, d DATE, x BINARY, m DECIMAL(5,2), b BOOLEAN, "
        "l ARRAY<INT>, s ARRAY<STRING>, o MAP<STRING, DOUBLE>, r STRUCT<a: INT>"
    )
    table = created(
        session,
        "id uuid, at timestamp, small bigint, d date, x blob, m decimal, b boolean, l frozen<list<int>>, s set<text>, "
        "o map<text, double>, r text, PRIMARY KEY (id, at)",
    )
    name, moment = uuid.uuid4(), dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.UTC)
    values = (5, dt.date(2026, 1, 2), b"a\0", Decimal("1.50"), True, [1, 2], ["x"], {"k": 1.5}, {"a": 1})
    sink = opened(server.uri(table), kind)
    (bad,) = write(sink, 100, rows(kind, (str(name), moment, *values), ("no", moment, *values)))
    assert (bad.row, bad.reason) == (1, "The field id: 'no' is not of type uuid.")
    (row,) = session.execute(f"SELECT * FROM {table}")
    assert (row.id, row.at, row.small, str(row.d)) == (
        name,
        moment.replace(microsecond=678_000, tzinfo=None),
        5,
        "2026-01-02",
    )
    assert (row.x, row.m, row.b, row.l, set(row.s)) == (b"a\0", Decimal("1.50"), True, [1, 2], {"x"})
    assert (dict(row.o), json.loads(row.r)) == ({"k": 1.5}, {"a": 1})


def test_all_that_does_not_fit_is_said_at_the_start(
    server: CassandraServer, session: Any, table: str
) -> None:
    """Errors concern columns, types, the key, or a missing table."""
    kind = record_type("id STRING NOT NULL, celsius STRING, room ARRAY<INT>, other INT")
    with pytest.raises(BindingError) as raised:
        opened(server.uri(table), kind)
    for part in (
        "its primary key has the column sensor, which the records have not",
        "its column celsius is double, which does not take string (text would fit)",
        "it has no column other (int would fit)",
    ):
        assert part in str(raised.value)
    with pytest.raises(
        BindingError, match=r"primary key is \(sensor\), and the key of the upserts \(celsius\)"
    ):
        opened(server.uri(table), CHANGE, ["celsius"])
    with pytest.raises(BindingError, match="has no table missing"):
        opened(server.uri("missing"))
    with pytest.raises(BindingError, match="has no keyspace other"):
        opened(server.uri(table).replace(KEYSPACE, "other"))
    lists = created(session, "sensor bigint PRIMARY KEY, l list<int>")
    with pytest.raises(BindingError, match=r"l is list<int>.*frozen<list<int>> would fit"):
        opened(server.uri(lists), record_type("sensor BIGINT NOT NULL, l ARRAY<INT>"))


def test_what_does_not_fit_is_rejected_record_by_record(server: CassandraServer, session: Any) -> None:
    """Keys that are null, empty or too long are rejected; the other records are written."""
    table = created(session, "room text PRIMARY KEY, note ascii")
    kind = record_type("room STRING, note STRING")
    sink = opened(server.uri(table), kind)
    rejected = write(
        sink,
        100,
        rows(kind, ("a", "x"), (None, "x"), ("", "x"), ("y" * 70_000, "x"), ("b", "é"), ("c", None)),
    )
    assert [one.row for one in rejected] == [1, 2, 3, 4]
    assert rejected[0].reason == "The field room, of the primary key, is null."
    assert f"the table {KEYSPACE}.{table}" in rejected[2].reason
    assert json.loads(rejected[3].raw) == {"room": "b", "note": "é"}
    assert found(session, table) == [("a", "x"), ("c", None)]


def test_random_attempts_end_at_the_last_values(server: CassandraServer, session: Any) -> None:
    """Attempts end anywhere, and send their remaining writes between later attempts."""
    table = created(session, "sensor bigint PRIMARY KEY, celsius double")
    chance = random.Random(3)
    sink, version = opened(server.uri(table), CHANGE, ["sensor"]), 10
    expected: dict[int, float] = {}
    zombies: list[tuple[Any, list[pa.RecordBatch]]] = []
    for batch in range(30):
        changes = [
            [
                (chance.choice(["+U", "+U", "-D"]), chance.randrange(6), batch * 10.0 + place)
                for place in range(4)
            ]
            for _ in range(3)
        ]
        blocks = [rows(CHANGE, *block) for block in changes]
        for kind, sensor, value in itertools.chain(*changes):
            expected[sensor] = value
            if kind == "-D":
                del expected[sensor]
        for is_last in (False, True):
            version += 20
            task, rest = sink.task(TaskContext(batch, 0, 0, "line", version), CHANGE), list(blocks)
            if not is_last:
                zombies.append((task, rest))
            for _ in range(3 if is_last else chance.randrange(3)):
                task.write(rest.pop(0), None)
                zombie, left = chance.choice(zombies)
                if left and zombie is not task:
                    zombie.write(left.pop(0), None)
        assert dict(found(session, table)) == expected


def test_a_table_that_changes_ends_the_run(server: CassandraServer, session: Any, table: str) -> None:
    """No record is to blame, so none becomes a dead letter: a column or the table is dropped, or the TTL is
    too long.
    """
    sink = opened(server.uri(table))
    one = rows(READING, (1, 1.0, "a"))
    assert write(sink, 100, one) == []
    session.execute(f"ALTER TABLE {table} DROP room")
    with pytest.raises(ExternalSystemError, match="has changed since the start of this run"):
        write(sink, 200, one)
    session.execute(f"DROP TABLE {table}")
    with pytest.raises(BindingError, match="has no table"):
        write(sink, 300, one)
    session.execute(f"CREATE TABLE {table} ({COLUMNS})")
    with pytest.raises(BindingError, match=r"does not take ttl_s=630720000 .*Lower it in the URI"):
        write(opened(server.uri(table, "?ttl_s=630720000")), 400, one)


def test_a_table_that_is_made_anew_with_another_key_ends_the_run(
    server: CassandraServer, session: Any, table: str
) -> None:
    """The new table would accept the rows; the client notices the change."""
    sink = opened(server.uri(table))
    one = rows(READING, (1, 1.0, "a"))
    assert write(sink, 100, one) == []
    session.execute(f"DROP TABLE {table}")
    session.execute(f"CREATE TABLE {table} (sensor bigint, celsius double, room text PRIMARY KEY)")

    def write_again() -> None:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            write(sink, 200, one)
            time.sleep(0.1)

    with pytest.raises(ExternalSystemError, match="its primary key is another"):
        write_again()


def test_rows_expire(server: CassandraServer, session: Any, table: str) -> None:
    """With ttl_s."""
    write(opened(server.uri(table, "?ttl_s=100&consistency=one")), 100, rows(READING, (1, 1.0, "a")))
    (row,) = session.execute(f"SELECT ttl(celsius) FROM {table}")
    assert 90 < row[0] <= 100


def test_doctor_looks_at_the_table(server: CassandraServer, table: str, tmp_path: Path) -> None:
    """It writes nothing."""
    binding = bind(server.uri(table))
    told = check_binding("latest", binding, is_source=False)
    assert (told.status, told.found) == ("ok", f"127.0.0.1:{server.port} has the table {KEYSPACE}.{table}")
    assert check_binding("latest", bind(server.uri("missing")), is_source=False).status == "failed"


def test_a_node_that_is_away_is_waited_for(server: CassandraServer, table: str) -> None:
    """It waits up to retry_s, however many rows wait; then the task fails, and its next attempt writes all."""
    away = server.uri(table, "?retry_s=1", port=free_port())
    with pytest.raises(ExternalSystemError, match="cannot be reached or written"):
        opened(away)
    with pytest.raises(ExternalSystemError, match="their names have no addresses"):
        opened("cassandra://nowhere.invalid:9042/plant/latest")
    with pytest.raises(BindingError, match="has no data center north, but datacenter1"):
        opened(server.uri(table, "?datacenter=north"))
    many = rows(READING, *((number, 1.0, "a") for number in range(3_000)))
    sink = opened(server.uri(table, "?retry_s=1"))
    write(sink, 100, rows(READING, (0, 1.0, "a")))
    server.kill()
    begun_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(ExternalSystemError, match="cannot be reached or written"):
            write(sink, 200, many)
    assert time.monotonic() < begun_s + 30
    server.start()
    write(opened(server.uri(table)), 300, many)
    # Other clients have not noticed yet that the node is back.
    assert server.execute(f"SELECT count(*) FROM {KEYSPACE}.{table}")[0].count == 3_000
