"""Jobs with Spark formats: a table that is loaded once, and one that gets each micro-batch, whatever is
killed.

Both are in PostgreSQL over JDBC, without penstock's own connector.
"""

from __future__ import annotations

import random
import time
import urllib.parse
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from file_feed import FileFeed
from job_process import JobProcess, await_true, run_arguments
from journal_checks import numbers_by_page
from postgres_server import PASSWORD, PostgresServer
from reliability import noting
from rooms import read_folder
from server_jars import server_jars
from sink_kills import BUSY_S, KilledSink, interrupt_briefly, strike, victims
from steady_feed import feed_steadily

from penstock.jobs.settings import RunSettings

SUITE = "formats of Spark"
LOADING_JOB = Path(__file__).with_name("tally_job.py")
KILLS = 10
PAGES = 20
# The job takes some seconds for this many.
FIRST_ROUNDS = 15_000


class Tables:
    """A server, and the bindings of a stream to its tables over JDBC."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._server = server
        self._password = folder / "password"
        self._password.write_text(f"{PASSWORD}\n")
        self.spark_settings = {"spark.jars": ",".join(map(str, server_jars("jdbc")))}

    def uri(self, table: str, more: str = "") -> str:
        url = urllib.parse.quote(f"jdbc:postgresql://127.0.0.1:{self._server.port}/postgres", safe="")
        # Its driver gives up a connection after ten seconds, which may be too short on a busy machine.
        login = f"user=tester&password=file:{self._password}&connectTimeout=600"
        return f"spark:jdbc?url={url}&{login}&dbtable={table}&driver=org.postgresql.Driver{more}"

    def execute(self, statements: str) -> None:
        with psycopg.connect(self._server.url("postgres")) as connection:
            text: Any = statements
            connection.execute(text)

    def rows(self, table: str) -> list[tuple[int, ...]]:
        with psycopg.connect(self._server.url("postgres")) as connection:
            query: Any = f"SELECT * FROM {table}"
            return connection.execute(query).fetchall()


def check_written(feed: FileFeed, rows: list[tuple[int, ...]]) -> None:
    """Check that each output is there, repeated only under the number of one micro-batch, and of few
    micro-batches.
    """
    times = Counter(rows)
    assert Counter((sensor, count) for sensor, count, _ in times) == feed.expected
    assert len({batch for (_, _, batch), number in times.items() if number > 1}) <= KILLS


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_writes_a_format(tmp_path: Path, interval_ms: int) -> None:
    """Ten kills in each mode, under load."""
    seed, mode = (62, "real time") if interval_ms else (61, "micro-batches")
    feed = FileFeed(tmp_path)
    feed.write()
    with PostgresServer() as server:
        tables = Tables(tmp_path, server)

        def settings(*, bounded: bool = False) -> RunSettings:
            return RunSettings(
                bindings={"readings": feed.binding, "seen": tables.uri("seen", "&batch_field=batch")},
                checkpoint=str(tmp_path / "checkpoint"),
                parallelism=2,
                checkpoint_interval_ms=interval_ms,
                bounded=bounded,
                spark_settings=tables.spark_settings,
            )

        with noting(SUITE, "-k kills_of_a_job_that_writes_a_format", str(seed)) as injected:
            interrupt = partial(interrupt_briefly, server)
            KilledSink(tmp_path, feed, settings, interrupt, patience_s=BUSY_S).survive(
                victims("server", KILLS),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job that writes a format in {mode}"),
            )
            check_written(feed, tables.rows("seen"))


class HitTable:
    """A table of hits that grows by rounds, each with one hit per page."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.rounds = FIRST_ROUNDS
        tables.execute(
            "CREATE TABLE hits (page text, number bigint, UNIQUE (page, number)); INSERT INTO hits "
            f"SELECT 'page' || page, number FROM generate_series(0, {FIRST_ROUNDS - 1}) AS number, "
            f"generate_series(0, {PAGES - 1}) AS page"
        )

    def feeding(self) -> AbstractContextManager[None]:
        """Add rounds while the block runs; if the server was down, the next write finds out whether it has
        the round.
        """
        return feed_steadily(self._write, 0.1, (psycopg.OperationalError,))

    def _write(self) -> None:
        self._tables.execute(
            f"INSERT INTO hits SELECT 'page' || page, {self.rounds} "
            f"FROM generate_series(0, {PAGES - 1}) AS page ON CONFLICT DO NOTHING"
        )
        self.rounds += 1


class LoadingRun:
    """A job with its own checkpoint that loads a table and counts its rows, again after each kill."""

    def __init__(self, folder: Path, hits: HitTable, settings: RunSettings) -> None:
        self._folder = folder
        self._hits = hits
        self._arguments = run_arguments(LOADING_JOB, settings)
        self._inputs = Path(settings.checkpoint or "") / "inputs"
        self._first = hits.rounds
        self._loaded: Mapping[str, str] | None = None
        # The remains of a killed run.
        self._left: int | None = None

    def start(self) -> JobProcess:
        self._left = self._loading_since()
        return JobProcess(self._arguments, self._folder)

    def await_station(self, job: JobProcess, station: str) -> None:
        """Wait until the job loads the table, or reads data loaded by it or an earlier run, or has ended."""
        loaded = self._inputs / "hits.loaded"

        def is_there() -> bool:
            if station == "load" and not loaded.exists():
                return self._loading_since() not in (None, self._left)
            return loaded.exists() and bool(job.workers())

        await_true(lambda: is_there() or self.has_ended(job), lambda: job.err, BUSY_S)

    def _loading_since(self) -> int | None:
        """Return when Spark last created the folder that it loads into, or None."""
        try:
            return (self._inputs / ".hits.loading").stat().st_mtime_ns
        except FileNotFoundError:
            return None

    @property
    def doing(self) -> str:
        """Return the current activity."""
        if (self._inputs / "hits.loaded").exists():
            return "that reads a table that Spark has loaded"
        return "that lets Spark load a table"

    @staticmethod
    def has_ended(job: JobProcess) -> bool:
        """Return whether a run is complete. Its JVM, which exists once the run reports its start, exits first."""
        return not job.running or ("\nThe job " in f"\n{job.err}" and not job.jvms())

    def look(self) -> None:
        """Check that loaded files do not change, and are removed when their micro-batch is committed."""
        if not (self._inputs / "hits.loaded").exists():
            return
        paths = (self._inputs / "hits").glob("*.parquet")
        found = {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}
        known = found if self._loaded is None else self._loaded
        assert found.items() <= known.items()
        self._loaded = known

    def finish(self, tallies: Path) -> None:
        """Let a last run finish: it has counted the table as it was at one moment, each row once."""
        with self.start() as job:
            assert job.wait(BUSY_S).code == 0, job.err
        rows = read_folder(tallies)
        numbers = numbers_by_page((row["page"], row["number"]) for row in rows)
        counts: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            counts[row["page"]].append(row["hits"])
        there = len(numbers["page0"])
        assert self._first <= there <= self._hits.rounds + 1
        for page in (f"page{page}" for page in range(PAGES)):
            assert sorted(numbers[page]) == list(range(there)), page
            assert sorted(counts[page]) == list(range(1, there + 1)), page
        assert not read_folder(tallies.with_name("checkpoint") / "dead-letters")


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_loads_a_format(tmp_path: Path, interval_ms: int) -> None:
    """Ten kills in each mode, while the growing table is loaded, or while the job reads the loaded data."""
    seed, mode = (64, "real time") if interval_ms else (63, "micro-batches")
    chance = random.Random(seed)
    with PostgresServer() as server:
        tables = Tables(tmp_path, server)
        hits = HitTable(tables)
        left = deque(victims("server", KILLS))
        with noting(SUITE, "-k kills_of_a_job_that_loads_a_format", str(seed)) as injected, hits.feeding():
            for folder in (tmp_path / str(number) for number in range(KILLS)):
                settings = RunSettings(
                    bindings={"hits": tables.uri("hits"), "tallies": f"jsonl:{folder / 'tallies'}"},
                    checkpoint=str(folder / "checkpoint"),
                    parallelism=2,
                    checkpoint_interval_ms=interval_ms,
                    bounded=True,
                    spark_settings=tables.spark_settings,
                )
                loading = LoadingRun(folder, hits, settings)
                for attempt in range(min(3, len(left))):
                    with loading.start() as job:
                        loads = attempt < 2 and left[0] != "worker"
                        loading.await_station(job, "load" if loads else "read")
                        time.sleep(chance.uniform(0, 1))
                        if loading.has_ended(job):
                            # The run was faster, so the next victim belongs to the next run.
                            assert job.wait(BUSY_S).code == 0, job.err
                            break
                        victim = left.popleft()
                        injected.add(f"{victim} of a job {loading.doing} in {mode}")
                        strike(victim, job, partial(interrupt_briefly, server))
                        time.sleep(chance.uniform(0, 1))
                    loading.look()
                loading.finish(folder / "tallies")
                if not left:
                    break
            assert not left
