"""A job that looks records up in PostgreSQL: each record counts once, by one row, whichever process is killed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from file_feed import SENSORS, FileFeed
from job_process import JobProcess, run_arguments
from postgres_server import PASSWORD, PostgresServer
from reliability import noting
from rooms import read_folder
from s3_server import S3Server
from sink_kills import BUSY_S, KilledSink, interrupt_briefly, victims
from stored_homes import checkpoint_on, lose_machines

from penstock.jobs.settings import RunSettings

JOB = Path(__file__).parent / "looked_up_job.py"
PLACES = 97


class LookupFeed(FileFeed):
    """Readings in files, and the table of places, in which each sensor moves with each file."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        self._server = server
        self._out = folder / "out"
        self._password = folder / "password"
        self._password.write_text(f"{PASSWORD}\n")
        self._execute(
            "CREATE TABLE places (id bigint PRIMARY KEY, place bigint NOT NULL); "
            f"INSERT INTO places SELECT n, n FROM generate_series(0, {SENSORS - 1}) AS n"
        )

    def _execute(self, statements: Any) -> None:
        with psycopg.connect(self._server.url("postgres")) as connection:
            connection.execute(statements)

    def settings(self, folder: Path, **settings: Any) -> RunSettings:
        place = f"postgresql://tester@127.0.0.1:{self._server.port}/postgres/places"
        bindings = {
            "readings": self.binding,
            "places": f"{place}?password=file:{self._password}&cache_s=1",
            "counted": f"jsonl:{self._out}",
        }
        return RunSettings(
            bindings=bindings, checkpoint=str(folder / "checkpoint"), parallelism=2, **settings
        )  # type: ignore[arg-type]

    def write(self) -> None:
        super().write()
        # The server may be down.
        with suppress(psycopg.OperationalError):
            self._execute(f"UPDATE places SET place = (place * 5 + id + 1) % {PLACES}")

    def assert_each_counted_once(self) -> None:
        """A reading counted in two places, or in another place than its output says, leaves a gap or a
        duplicate.
        """
        found = read_folder(self._out)
        readings = Counter((one["sensor"], one["number"]) for one in found)
        assert readings == Counter(
            (sensor, number) for sensor in range(SENSORS) for number in range(self.files)
        )
        counts: dict[int, list[int]] = defaultdict(list)
        for one in found:
            counts[one["place"]].append(one["count"])
        assert len(counts) > SENSORS
        for place, of_place in counts.items():
            assert sorted(of_place) == list(range(1, len(of_place) + 1)), place


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_looks_up(tmp_path: Path, interval_ms: int) -> None:
    """Twenty kills in each mode, under load, while the table changes; a record counts where its place says."""
    seed = 12 if interval_ms else 11
    mode = "real time" if interval_ms else "micro-batches"
    with PostgresServer() as server:
        feed = LookupFeed(tmp_path, server)
        feed.write()
        settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
        with noting("lookups", "-k kills_of_a_job_that_looks_up", str(seed)) as injected:
            KilledSink(tmp_path, feed, settings, lambda: interrupt_briefly(server), JOB, BUSY_S).survive(
                victims("server", 20),
                random.Random(seed),
                lambda victim: injected.add(
                    f"{victim} of a job that looks records up in PostgreSQL in {mode}"
                ),
            )
            feed.assert_each_counted_once()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_looks_up_and_of_its_machine(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    """The rows for replays are in the checkpoint's store, since the disk is lost each time."""
    chance = random.Random(23)
    mode = "real time" if interval_ms else "micro-batches"
    with PostgresServer() as server, checkpoint_on(s3, monkeypatch) as uri:
        feed = LookupFeed(tmp_path, server)
        feed.write()
        settings = feed.settings(tmp_path, checkpoint_interval_ms=interval_ms)
        settings = dataclasses.replace(settings, checkpoint=uri)
        command = "-k kills_of_a_job_that_looks_up_and_of_its_machine"
        with noting("lookups", command, "23") as injected:
            with feed.feeding():
                what = f"of a job that looks records up in {mode}, and its machine's disk"
                lose_machines(
                    uri,
                    run_arguments(JOB, settings),
                    tmp_path,
                    ("driver", "worker", "JVM") * 3,
                    chance,
                    lambda: len(read_folder(tmp_path / "out")),
                    lambda victim: injected.add(f"{victim} {what}"),
                )
            last = dataclasses.replace(settings, bounded=True)
            with JobProcess(run_arguments(JOB, last), tmp_path) as job:
                assert job.wait().code == 0, job.err
            feed.assert_each_counted_once()
