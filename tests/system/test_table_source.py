"""PostgreSQL tables as sources, on a real server: each row is in the journal once, in order."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from conformance_page import note_conformance
from journaled_records import journaled
from postgres_server import PASSWORD, PostgresServer
from receiving_process import receiver
from silent_server import in_haste

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command
from penstock.databases import postgres_connections
from penstock.databases.row_json import COMMAND_ROWS, Column, RowShape, row_json
from penstock.databases.table_receiver import TableReceiver, check_table
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, PlaceMissingError
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sources.base import ReplayableLog
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.testing.connectors import SourceUnderTest, check_source

WAIT_S = 60.0
RECEIVING = Path(__file__).with_name("receiving_process.py")
# Long enough for a receiver that reads too early to show it.
EARLY_S = 0.5


class Tables:
    """A schema of its own, with a table of numbers from a sequence."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.new_schema()
        self.schema = urllib.parse.unquote(self.url).rpartition("=")[2]
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.execute("CREATE TABLE numbers (id bigserial PRIMARY KEY, number bigint)")

    def execute(self, statement: Any) -> list[tuple[Any, ...]]:
        done = self.connection.execute(statement)
        return done.fetchall() if done.description else []

    def insert(self, *bounds: int) -> None:
        self.execute(
            f"INSERT INTO numbers (number) SELECT * FROM generate_series({bounds[0]}, {bounds[1] - 1})"
        )

    def uri(self, table: str = "numbers", poll_by: str = "id", login: str = "", **parameters: object) -> str:
        query = urllib.parse.urlencode({"poll_by": poll_by, **parameters})
        login = login or f"tester:{PASSWORD}"
        return f"postgresql://{login}@127.0.0.1:{self.server.port}/postgres/{self.schema}.{table}?{query}"

    def binding(self, *arguments: str, **parameters: object) -> PostgresBinding:
        found = parse_binding("readings", self.uri(*arguments, **parameters), "data")  # type: ignore[arg-type]
        assert isinstance(found, PostgresBinding)
        return found


@pytest.fixture
def tables(postgres: PostgresServer) -> Iterator[Tables]:
    found = Tables(postgres)
    yield found
    found.connection.close()


def receive(folder: Path, uri: str, fields: str = "number BIGINT") -> None:
    """Receive the rows of the table."""
    with receiver(folder, uri, bounded=True, fields=fields) as receiving:
        receiving.wait_for_end(threading.Event())


def numbers(folder: Path) -> list[int]:
    return [json.loads(record)["number"] for record in journaled(folder)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_come_in_order_once(tables: Tables, tmp_path: Path) -> None:
    """Rows are read page by page, also those inserted while it polls; a restart continues after the last row."""
    tables.insert(0, 2_500)
    uri = tables.uri(max_records_per_poll=1_000)
    receive(tmp_path, uri)
    assert numbers(tmp_path) == list(range(2_500))
    before = journaled(tmp_path)
    with receiver(tmp_path, uri) as receiving:
        tables.insert(2_500, 2_600)
        wait_until(lambda: len(journaled(tmp_path)) == 2_600)
        assert receiving.error is None
    # Rows that were read stay, whatever happens to the table's rows.
    tables.execute("DELETE FROM numbers WHERE id < 100; UPDATE numbers SET number = -1")
    receive(tmp_path, uri)
    assert journaled(tmp_path)[:2_500] == before
    assert numbers(tmp_path) == list(range(2_600))


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_an_empty_table_is_read_from_its_first_row_on(tables: Tables, tmp_path: Path, start: str) -> None:
    """With start=latest an existing table is read from its next row on, also after a restart before that row."""
    receive(tmp_path, tables.uri(start=start))
    tables.insert(0, 3)
    receive(tmp_path, tables.uri(start=start))
    assert numbers(tmp_path) == [0, 1, 2]
    receive(tmp_path / "later", tables.uri(start="latest"))
    tables.insert(3, 5)
    receive(tmp_path / "later", tables.uri(start="latest"))
    assert numbers(tmp_path / "later") == [3, 4]


def test_a_start_at_the_end_misses_nothing_that_comes_after_it(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the server is, rows that are inserted as soon as a run has begun are read."""
    tables.insert(0, 2)
    begin = TableReceiver._begin

    def begin_late(receiving: TableReceiver, opened: Any) -> None:
        time.sleep(0.3)
        begin(receiving, opened)

    monkeypatch.setattr(TableReceiver, "_begin", begin_late)
    with receiver(tmp_path, tables.uri(start="latest")):
        tables.insert(2, 4)
        wait_until(lambda: numbers(tmp_path) == [2, 3])


@pytest.mark.parametrize("how", ["inserted", "drawn", "prepared", "times"])
def test_a_row_that_is_committed_late_is_not_missed(tables: Tables, tmp_path: Path, how: str) -> None:
    """This includes rows whose transaction has only drawn its number, or has only begun when rows are ordered
    by a time.
    """
    by = {"poll_by": "at"} if how == "times" else {}
    tables.execute("ALTER TABLE numbers ADD at timestamptz DEFAULT now()")
    late = psycopg.connect(tables.url)
    if how == "drawn":
        late.execute("SELECT nextval('numbers_id_seq')")
    elif how == "times":
        late.execute("SELECT now()")
    else:
        late.execute("INSERT INTO numbers (number) VALUES (1)")
    tables.insert(2, 4)
    if how == "prepared":
        late.execute(f"PREPARE TRANSACTION '{tables.schema}'")
    with receiver(tmp_path, tables.uri(**by)) as receiving:
        time.sleep(EARLY_S + (1.0 if by else 0.0))
        assert numbers(tmp_path) == []
        if how == "drawn":
            late.execute("INSERT INTO numbers VALUES (1, 1)")
        elif how == "times":
            late.execute("INSERT INTO numbers (number) VALUES (1)")
        if how == "prepared":
            tables.execute(f"COMMIT PREPARED '{tables.schema}'")
        else:
            late.commit()
        wait_until(lambda: len(journaled(tmp_path)) == 3)
        assert receiving.error is None
    late.close()
    assert numbers(tmp_path) == [1, 2, 3]


def test_writers_of_other_tables_hold_nothing_back(tables: Tables, tmp_path: Path) -> None:
    """Transactions that only read this table hold nothing back either."""
    tables.execute("CREATE TABLE others (id bigserial)")
    with psycopg.connect(tables.url) as other:
        other.execute("INSERT INTO others DEFAULT VALUES")
        other.execute("SELECT * FROM numbers")
        tables.insert(0, 2)
        receive(tmp_path, tables.uri())
        assert numbers(tmp_path) == [0, 1]


def test_many_writers_lose_and_repeat_nothing(tables: Tables, tmp_path: Path) -> None:
    """Transactions commit in another order than they drew numbers, and some are rolled back."""

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(tables.url) as connection:
            for _ in range(40):
                for _ in range(chance.randrange(1, 4)):
                    connection.execute("INSERT INTO numbers (number) VALUES (0)")
                    time.sleep(chance.uniform(0, 0.01))
                if chance.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        receive(tmp_path, tables.uri(max_records_per_poll=7), "id BIGINT")
    receive(tmp_path, tables.uri(), "id BIGINT")
    found = [json.loads(record)["id"] for record in journaled(tmp_path)]
    assert found == [row[0] for row in tables.execute("SELECT id FROM numbers ORDER BY id")]


def test_rows_with_the_same_time_are_told_apart_by_the_primary_key(tables: Tables, tmp_path: Path) -> None:
    """This holds when a page ends among them; rows with a null time are skipped, and future ones wait."""
    tables.execute(
        "CREATE TABLE events (a text, b int, number bigint, at timestamptz, PRIMARY KEY (a, b)); "
        "INSERT INTO events SELECT 'k' || n % 3, n, n, timestamptz '2026-01-01 00:00:00+02' + n / 10 * interval '1 h' "
        "FROM generate_series(0, 99) AS n; INSERT INTO events VALUES ('x', 1, 1, NULL), ('y', 1, 1, 'infinity')"
    )
    uri = tables.uri("events", "at", max_records_per_poll=7)
    receive(tmp_path, uri)
    expected = tables.execute("SELECT number FROM events WHERE isfinite(at) ORDER BY at, a, b")
    assert numbers(tmp_path) == [row[0] for row in expected]
    tables.execute("INSERT INTO events SELECT 'z', n, -n, now() FROM generate_series(1, 3) AS n")
    time.sleep(1.1)
    receive(tmp_path, uri)
    assert numbers(tmp_path)[100:] == [-1, -2, -3]


def test_a_kill_repeats_and_loses_no_row(tables: Tables, tmp_path: Path) -> None:
    """Kill -9 right after a journal write, twice; journaled rows do not change."""
    tables.insert(0, 3_000)
    uri = tables.uri(max_records_per_poll=500)
    for kills in (1, 2):
        command = [sys.executable, str(RECEIVING), str(tmp_path), uri, "waits"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"connected\n"
            assert process.stdout.readline() == b"500\n"
            process.kill()
        assert numbers(tmp_path) == list(range(500 * kills))
    receive(tmp_path, uri)
    assert numbers(tmp_path) == list(range(3_000))


TYPES = (
    "flag BOOLEAN, small SMALLINT, big BIGINT, price DECIMAL(12, 3), ratio DOUBLE, name STRING, raw BINARY, "
    "at TIMESTAMP, local TIMESTAMP, day DATE, tags ARRAY<STRING>, attributes MAP<STRING, BIGINT>, code STRING"
)
ROWS = """
CREATE DOMAIN short AS varchar(5);
CREATE TABLE typed (id int GENERATED ALWAYS AS IDENTITY UNIQUE, flag bool, small int, big bigint, price numeric,
  ratio float8, name short, raw bytea, at timestamptz, local timestamp, day date, tags text[], attributes jsonb,
  code uuid);
INSERT INTO typed (flag, small, big, price, ratio, name, raw, at, local, day, tags, attributes, code) VALUES
  (true, 1, 9223372036854775807, 123456789.125, 0.1, E'q"\\u00e9%', decode(repeat('00ff', 50), 'hex'),
   '2026-01-02 03:04:05.000006+02', '2026-01-02 03:04:05', '2026-01-02', '{a,"b,c"}', '{"n": 7}',
   '11111111-2222-3333-4444-555555555555'),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO typed (small) VALUES (70000);
INSERT INTO typed (ratio) VALUES ('Infinity');
INSERT INTO typed (day) VALUES ('infinity');
"""


def test_columns_become_fields(tables: Tables, tmp_path: Path) -> None:
    """Values are exact; a value that the field cannot hold is a bad record with its reason."""
    tables.execute(ROWS)
    receive(tmp_path, tables.uri("typed"), TYPES)
    decoded = format_of("json", record_type(TYPES)).decode(pa.array(journaled(tmp_path), pa.binary()))
    first, second = decoded.batch.to_pylist()
    assert {name: str(value) for name, value in first.items()} == {
        "flag": "True",
        "small": "1",
        "big": "9223372036854775807",
        "price": "123456789.125",
        "ratio": "0.1",
        "name": 'q"é%',
        "raw": str(b"\x00\xff" * 50),
        "at": "2026-01-02 01:04:05.000006+00:00",
        "local": "2026-01-02 03:04:05+00:00",
        "day": "2026-01-02",
        "tags": "['a', 'b,c']",
        "attributes": "[('n', 7)]",
        "code": "11111111-2222-3333-4444-555555555555",
    }
    assert set(second.values()) == {None}
    assert [row for row, _ in decoded.bad] == [2, 3, 4]


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_may_have_the_names_that_queries_use(tables: Tables, sparse: bool) -> None:
    """The row is intact, also beside a column of the same name."""
    tables.execute("CREATE TABLE short (r int, t int, k int, e int, key text, value text)")
    tables.execute("INSERT INTO short VALUES (1, 2, 3, 4, 'a', NULL)")
    fields = record_type("r INT, t INT, k INT, e INT, key STRING, value STRING").schema
    columns = {
        name: Column(name, "", "int4" if pa.types.is_integer(fields.field(name).type) else "text", "")
        for name in fields.names
    }
    [[found]] = tables.execute(f"SELECT {row_json(RowShape(fields, sparse), columns)} FROM short AS t")
    expected = {"r": 1, "t": 2, "k": 3, "e": 4, "key": "a"}
    assert json.loads(found) == (expected if sparse else expected | {"value": None})


CASES = [
    (
        "numbers",
        "celsius",
        "number BIGINT",
        r"has no column celsius, by which .* it has id, number\. Correct poll_by",
    ),
    ("numbers", "id", "celsius DOUBLE", r"has no column celsius; it has id, number"),
    ("numbers", "id", "number BOOLEAN", r"number is bigint, and the field takes boolean"),
    ("numbers", "number", "number BIGINT", r"CREATE UNIQUE INDEX ON .*\"numbers\" \(\"number\"\)"),
    ("words", "word", "word STRING", r"has word of the type text, and is read by an integer"),
    ("words", "at", "word STRING", r"no primary key tells them apart"),
    ("words", "cached", "word STRING", r"do not grow .*ALTER SEQUENCE .*words_cached_seq CACHE 1"),
    ("seen", "id", "number BIGINT", r"is a view"),
]


@pytest.mark.parametrize(("table", "by", "fields", "told"), CASES)
def test_what_is_wrong_is_told(tables: Tables, table: str, by: str, fields: str, told: str) -> None:
    """A job reports it at its start, with the remedy."""
    tables.execute(
        "CREATE TABLE words (word text, at timestamptz, cached serial); CREATE VIEW seen AS TABLE numbers"
    )
    tables.execute("ALTER SEQUENCE words_cached_seq CACHE 10")
    with pytest.raises(BindingError, match=told):
        check_table(tables.binding(table, by), RowShape(record_type(fields).schema))


def test_rights_and_places_are_checked(tables: Tables, tmp_path: Path) -> None:
    """Doctor checks them too; a checkpoint does not continue in another order."""
    reader = f"reader_{tables.schema}"
    tables.execute(
        f"CREATE ROLE {reader} LOGIN PASSWORD 'r'; GRANT USAGE ON SCHEMA {tables.schema} TO {reader}"
    )
    shape = RowShape(record_type("number BIGINT").schema)
    with pytest.raises(BindingError, match=rf'may not be read by .* GRANT SELECT ON .* TO "{reader}"'):
        check_table(tables.binding(login=f"{reader}:r"), shape)
    tables.execute(f"GRANT SELECT (id, number) ON numbers TO {reader}")
    check_table(tables.binding(login=f"{reader}:r"), shape)
    with pytest.raises(BindingError, match="Remove poll_delay_s"):
        check_table(tables.binding(poll_delay_s=3), shape)
    with pytest.raises(PlaceMissingError, match="does not exist"):
        check_table(tables.binding("nothing"), shape)
    assert check_binding("readings", tables.binding(), is_source=True).status == "ok"
    assert check_binding("readings", tables.binding("nothing"), is_source=True).status == "failed"
    receive(tmp_path, tables.uri())
    tables.execute("ALTER TABLE numbers ADD other int UNIQUE")
    with (
        pytest.raises(BindingError, match=r"has read .* by id, and would continue in .* by other"),
        receiver(tmp_path, tables.uri(poll_by="other")),
    ):
        pass


def test_a_server_that_restarts_is_found_again(tmp_path: Path) -> None:
    """Each row is journaled once."""
    with PostgresServer() as server:
        tables = Tables(server)
        with receiver(tmp_path, tables.uri(max_records_per_poll=10)) as receiving:
            tables.insert(0, 100)
            server.kill()
            server.start()
            tables.connection = psycopg.connect(tables.url, autocommit=True)
            tables.insert(100, 200)
            wait_until(lambda: len(journaled(tmp_path)) == 200)
            assert receiving.error is None
        tables.connection.close()
    assert numbers(tmp_path) == list(range(200))


def test_commands_come_from_a_table(tables: Tables, tmp_path: Path) -> None:
    """The table's columns are the command's fields; null counts as missing."""
    tables.execute(
        "CREATE TABLE commands (number bigserial PRIMARY KEY, id uuid DEFAULT gen_random_uuid(), kind text, "
        "target jsonb, version int, effective_at timestamptz, payload jsonb, remark text); "
        "INSERT INTO commands (kind, target, payload, effective_at) "
        """SELECT 'add', '{"step": "sums", "key": 1}', to_jsonb(n), '2026-01-01Z' FROM generate_series(1, 2) AS n"""
    )
    assert COMMAND_ROWS.schema.names == list(Command.__struct_fields__)
    binding = tables.binding("commands", "number")
    with TableReceiver(binding, COMMAND_ROWS, JournalWriter(tmp_path), bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    first, second = (decode_command(record, max_bytes=1_000) for record in journaled(tmp_path))
    assert (first.kind, first.target.step, first.target.key, bytes(first.payload)) == ("add", "sums", 1, b"1")
    assert (bytes(second.payload), second.version) == (b"2", None)
    assert second.effective_at == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_the_source_is_held_to_the_conformance_kit(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are ordered by a sequence; the tests poll without a pause."""
    tables.execute("CREATE TABLE kit (place bigserial PRIMARY KEY, id bigint)")
    right = tables.binding("kit", "place")
    fields = RowShape(record_type("id BIGINT").schema)

    def opening(
        place: PostgresBinding, name: str
    ) -> Callable[[], AbstractContextManager[ReplayableLog[Any]]]:
        @contextmanager
        def opened() -> Iterator[ReplayableLog[Any]]:
            with TableReceiver(place, fields, JournalWriter(tmp_path / name)):
                yield JournalLog(tmp_path / name)

        return opened

    def put(records: Sequence[bytes]) -> None:
        with tables.connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO kit (id) VALUES (%s)", [(json.loads(one)["id"],) for one in records]
            )

    note_conformance(
        check_source(
            SourceUnderTest(
                "PostgreSQL",
                "each record once",
                opening(dataclasses.replace(right, poll_s=0), "journal"),
                put,
                with_wrong_login=opening(tables.binding("kit", "place", "tester:not-the-password"), "wrong"),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda port: opening(dataclasses.replace(right, port=port), "slow")(),
                    (postgres_connections, "_CONNECT_S", 2),
                ),
                without={
                    "bad record": "the columns of a table have types, and rows become JSON in the server"
                },
            )
        )
    )
