"""Jobs from and to PostgreSQL: each output is one row, whichever process or server is killed."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from job_in_session import JobInSession
from postgres_server import PASSWORD, PostgresServer
from pyspark.sql import SparkSession
from reliability import noting
from rooms import read_folder
from sink_kills import BUSY_S, KilledSink, interrupt_briefly, victims

from penstock.jobs.settings import RunSettings

CHANGELOG_JOB = Path(__file__).with_name("changing_hits.sql")


class Feed(FileFeed):
    """Readings in files, and the table of the job's output."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        self._server = server
        self._password = folder / "password"
        self._password.write_text(f"{PASSWORD}\n")
        self.uri = f"postgresql://tester@127.0.0.1:{server.port}/postgres/seen_{time.time_ns()}"

    def settings(self, folder: Path, **settings: Any) -> RunSettings:
        bindings = {
            "readings": self.binding,
            "seen": f"{self.uri}?password=file:{self._password}&create_table=true",
        }
        return RunSettings(
            bindings=bindings, checkpoint=str(folder / "checkpoint"), parallelism=2, **settings
        )  # type: ignore[arg-type]

    def rows(self) -> list[tuple[int, int]]:
        """Return the rows of the table; none before the job has created it."""
        table = self.uri.rpartition("/")[2]
        try:
            with psycopg.connect(self._server.url("postgres")) as connection:
                return connection.execute(f"SELECT sensor, count FROM {table}").fetchall()
        except psycopg.errors.UndefinedTable:
            return []

    def execute(self, statements: str) -> None:
        """Run statements, in which {table} is the table."""
        with psycopg.connect(self._server.url("postgres")) as connection:
            text: Any = statements.format(table=self.uri.rpartition("/")[2])
            connection.execute(text)

    def assert_exactly_once(self) -> None:
        assert Counter(self.rows()) == self.expected


class TableFeed(Feed):
    """Readings and commands in tables of the same server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder, server)
        self.table = f"readings_{time.time_ns()}"
        self.execute(
            f"CREATE TABLE {self.table} (id bigserial PRIMARY KEY, sensor int, number int, UNIQUE (sensor, number)); "
            f"CREATE TABLE commands_of_{self.table} (number bigserial PRIMARY KEY, id text, kind text, payload jsonb)"
        )

    @property
    def binding(self) -> str:
        return self._place(self.table, "id")

    def settings(self, folder: Path, **settings: Any) -> RunSettings:
        found = super().settings(folder, **settings)
        commands = self._place(f"commands_of_{self.table}", "number")
        return dataclasses.replace(found, bindings={**found.bindings, "commands": commands})

    def write(self) -> None:
        """Insert the next rows, unless the server is down; the next write finds out whether it has them."""
        with suppress(psycopg.OperationalError):
            self.execute(
                f"INSERT INTO {self.table} (sensor, number) SELECT sensor, {self.files} "
                f"FROM generate_series(0, {SENSORS - 1}) AS sensor ON CONFLICT DO NOTHING"
            )
            self.files += 1

    def add_command(self, kind: str) -> None:
        self.execute(f"INSERT INTO commands_of_{self.table} (id, kind) VALUES ('c1', '{kind}')")

    def _place(self, table: str, poll_by: str) -> str:
        place = f"{self.uri.rpartition('/')[0]}/{table}"
        return f"{place}?poll_by={poll_by}&password=file:{self._password}"


class UpsertFeed(Feed):
    """Readings in files, a table with inserts, updates and deletes, and the history of these changes."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder, server)
        self.execute(
            "CREATE TABLE {table} (sensor bigint PRIMARY KEY, hits bigint); "
            "CREATE TABLE history_of_{table} (place bigserial PRIMARY KEY, change text, sensor bigint, hits bigint); "
            "CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO history_of_{table} (change, sensor, hits) "
            "VALUES (TG_OP, coalesce(NEW.sensor, OLD.sensor), coalesce(NEW.hits, OLD.hits)); RETURN NULL; END $$; "
            "CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION note_{table}()"
        )

    def assert_each_change_once(self) -> None:
        """Check that rows equal the model's, and none was written again, or with an older count, on the way."""
        table = self.uri.rpartition("/")[2]
        with psycopg.connect(self._server.url("postgres")) as connection:
            rows = connection.execute(f"SELECT sensor, hits FROM {table} ORDER BY sensor").fetchall()
            changes = connection.execute(
                f"SELECT change, sensor, hits FROM history_of_{table} ORDER BY place"
            ).fetchall()
        there: dict[int, int] = {}
        highest: dict[int, int] = {}
        for change, sensor, hits in changes:
            if change == "DELETE":
                assert there.pop(sensor) == hits, (sensor, hits)
                continue
            assert (change == "UPDATE") == (sensor in there), (change, sensor, hits)
            assert hits % 3, (sensor, hits)
            assert hits > highest.get(sensor, 0), (sensor, hits, highest)
            there[sensor] = highest[sensor] = hits
        expected = [(sensor, self.files) for sensor in range(SENSORS)] if self.files % 3 else []
        assert rows == sorted(there.items()) == expected


def test_a_job_reads_and_writes_each_row_once_in_both_modes(
    tmp_path: Path, spark: SparkSession, postgres: PostgresServer
) -> None:
    """It continues from its checkpoint, in real time after micro-batches; the checkpoint has no secret.

    Records that do not fit the stream's schema, and rows that the table refuses, are dead letters. Commands
    come from a table too.
    """
    feed = TableFeed(tmp_path, postgres)
    feed.write()
    feed.add_command("sing")
    with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True)) as job:
        job.wait()
    feed.assert_exactly_once()
    receipts = read_folder(tmp_path / "checkpoint" / "receipts")
    assert {(receipt["id"], receipt["status"]) for receipt in receipts} == {
        ("c1", "ACCEPTED"),
        ("c1", "REJECTED"),
    }
    feed.write()
    with JobInSession(
        spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True, checkpoint_interval_ms=1000)
    ) as job:
        job.wait()
    feed.assert_exactly_once()

    feed.execute("DELETE FROM {table}; ALTER TABLE {table} ADD CHECK (sensor <> 7)")
    feed.execute(f"INSERT INTO {feed.table} (sensor) VALUES (1)")
    feed.write()
    with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True)) as job:
        job.wait()
    assert sorted(feed.rows()) == [(sensor, 3) for sensor in range(SENSORS) if sensor != 7]
    letters = {letter["step"]: letter for letter in read_folder(tmp_path / "checkpoint" / "dead-letters")}
    assert set(letters) == {"", "sink/seen"}
    assert "violates check constraint" in letters["sink/seen"]["reason"]
    bodies = {step: json.loads(base64.b64decode(letter["raw"])) for step, letter in letters.items()}
    assert bodies == {
        "": {"sensor": 1, "number": None},
        "sink/seen": {"sensor": 7, "count": 3},
    }
    checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not [path for path in checkpoint if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [Feed, TableFeed])
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_database(tmp_path: Path, interval_ms: int, kind: type[Feed]) -> None:
    """Twenty kills in each mode, under load: readings come from files, or from a table."""
    seed = (8 if interval_ms else 7) + (2 if kind is TableFeed else 0)
    does = "reads and writes tables" if kind is TableFeed else "writes to PostgreSQL"
    suite = "database sources" if kind is TableFeed else "database sinks"
    with PostgresServer() as server:
        feed = kind(tmp_path, server)
        feed.write()
        settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
        mode = "real time" if interval_ms else "micro-batches"
        with noting(suite, "-k kills_of_a_job_and_its_database", str(seed)) as injected:
            KilledSink(
                tmp_path, feed, settings, lambda: interrupt_briefly(server), patience_s=BUSY_S
            ).survive(
                victims("server", 20),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job that {does} in {mode}"),
            )
            feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_upserts_into_postgresql(tmp_path: Path, interval_ms: int) -> None:
    """Ten kills in each mode, under load, with a changelog of inserts, updates and deletes."""
    seed = 12 if interval_ms else 11
    mode = "real time" if interval_ms else "micro-batches"
    with PostgresServer() as server:
        feed = UpsertFeed(tmp_path, server)
        feed.write()
        settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
        with noting(
            "database sinks", "-k kills_of_a_job_that_upserts_into_postgresql", str(seed)
        ) as injected:
            KilledSink(
                tmp_path, feed, settings, lambda: interrupt_briefly(server), CHANGELOG_JOB, BUSY_S
            ).survive(
                victims("server", 10),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job that upserts into PostgreSQL in {mode}"),
            )
            feed.assert_each_change_once()
