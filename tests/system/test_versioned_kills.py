"""Jobs that write to Cassandra and OpenSearch: each key ends at its last value, whatever is killed."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cassandra_server import KEYSPACE, CassandraServer
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from job_in_session import JobInSession
from opensearch_server import OpenSearchServer
from pyspark.sql import SparkSession
from reliability import noting
from sink_kills import KilledSink, interrupt_briefly, victims

from penstock.jobs.settings import RunSettings


class Rows:
    """Counts as rows of Cassandra."""

    name = "Cassandra"

    def __init__(self, folder: Path) -> None:
        self.server = CassandraServer(folder)

    def prepare(self) -> None:
        self.server.execute(f"CREATE TABLE {KEYSPACE}.seen (sensor bigint PRIMARY KEY, count bigint)")

    def uri(self) -> str:
        return self.server.uri("seen", "?retry_s=300")

    def counts(self) -> dict[int, int]:
        """Query with a new client: one that has seen the server go down may still believe so."""
        rows = self.server.execute(f"SELECT sensor, count FROM {KEYSPACE}.seen")
        return {row.sensor: row.count for row in rows}


class Documents:
    """Counts as documents of OpenSearch."""

    name = "OpenSearch"

    def __init__(self, folder: Path) -> None:
        self.server = OpenSearchServer(folder)

    def prepare(self) -> None:
        self.server.ask("PUT", "/seen")

    def uri(self) -> str:
        return self.server.uri("seen", "?id={sensor}&retry_s=300")

    def counts(self) -> dict[int, int]:
        return {int(key): one["count"] for key, one in self.server.documents("seen").items()}


class Feed(FileFeed):
    """Readings in files, and the keys with the job's output."""

    def __init__(self, folder: Path, store: Any) -> None:
        super().__init__(folder)
        self.store = store

    def settings(self, folder: Path, **settings: Any) -> RunSettings:
        return RunSettings(
            bindings={"readings": self.binding, "seen": self.store.uri()},
            checkpoint=str(folder / "checkpoint"),
            parallelism=2,
            **settings,
        )

    def assert_last_values(self) -> None:
        assert self.store.counts() == dict.fromkeys(range(SENSORS), self.files)


@pytest.mark.parametrize("kind", [pytest.param(Rows, marks=pytest.mark.chaos), Documents])
def test_a_job_writes_the_last_values_in_both_modes(tmp_path: Path, spark: SparkSession, kind: Any) -> None:
    """One checkpoint has runs with increasing versions."""
    (tmp_path / "server").mkdir()
    store = kind(tmp_path / "server")
    with store.server:
        store.prepare()
        feed = Feed(tmp_path, store)
        for settings in ({}, {"checkpoint_interval_ms": 1000}):
            feed.write()
            with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True, **settings)) as job:
                job.wait()
            feed.assert_last_values()
    assert len(list((tmp_path / "checkpoint" / "write-versions").iterdir())) == 1


@pytest.mark.chaos
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("kind", [Rows, Documents])
def test_kills_of_a_job_and_its_store(tmp_path: Path, kind: Any, interval_ms: int) -> None:
    """Twenty kills in each mode, under load."""
    seed = 4 if interval_ms else 3
    (tmp_path / "server").mkdir()
    store = kind(tmp_path / "server")
    with store.server:
        store.prepare()
        feed = Feed(tmp_path, store)
        feed.write()
        settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
        mode = "real time" if interval_ms else "micro-batches"
        with noting("versioned sinks", "-k kills_of_a_job_and_its_store", str(seed)) as injected:
            KilledSink(tmp_path, feed, settings, lambda: interrupt_briefly(store.server)).survive(
                victims("server", 20),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job that writes to {store.name} in {mode}"),
            )
            feed.assert_last_values()
