"""Jobs that write to Redis: each key ends at its last value, whichever process or server is killed."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from redis_server import PASSWORD, RedisServer
from reliability import noting
from rooms import read_folder
from sink_kills import KilledSink, interrupt_briefly, victims

from penstock.jobs.settings import RunSettings


class Feed(FileFeed):
    """Readings in files, and the keys with the job's output."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        super().__init__(folder)
        self._server = server
        self._password = folder / "password"
        self._password.write_text(f"{PASSWORD}\n")

    def settings(self, folder: Path, **settings: Any) -> RunSettings:
        uri = f"redis://127.0.0.1:{self._server.port}/0/seen:{{sensor}}?password=file:{self._password}"
        return RunSettings(
            bindings={"readings": self.binding, "seen": uri},
            checkpoint=str(folder / "checkpoint"),
            parallelism=2,
            **settings,
        )

    def counts(self) -> dict[int, int]:
        """Return the count of each sensor."""
        with self._server.client() as client:
            found = [client.hgetall(key) for key in client.keys("seen:*")]
        return {int(one["sensor"]): int(one["count"]) for one in found}

    def assert_last_values(self) -> None:
        assert self.counts() == dict.fromkeys(range(SENSORS), self.files)


def test_a_job_writes_the_last_values_in_both_modes(tmp_path: Path, spark: SparkSession) -> None:
    """Records that Redis refuses are dead letters; the checkpoint has no secret."""
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        feed = Feed(tmp_path, server)
        for settings in ({}, {"checkpoint_interval_ms": 1000}):
            feed.write()
            with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True, **settings)) as job:
                job.wait()
            feed.assert_last_values()
        with server.client() as client:
            client.set("seen:7", "taken", keepttl=False)
            feed.write()
            with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path, bounded=True)) as job:
                job.wait()
            assert client.get("seen:7") == "taken"
            assert client.hget("seen:8", "count") == "3"
        (letter,) = read_folder(tmp_path / "checkpoint" / "dead-letters")
        assert letter["step"] == "sink/seen"
        assert "refuses the value of the key 'seen:7'" in letter["reason"]
        checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
        assert not [path for path in checkpoint if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_redis(tmp_path: Path, interval_ms: int) -> None:
    """Twenty kills in each mode, under load."""
    seed = 8 if interval_ms else 7
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        feed = Feed(tmp_path, server)
        feed.write()
        settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
        mode = "real time" if interval_ms else "micro-batches"
        with noting("key-value sinks", "-k kills_of_a_job_and_its_redis", str(seed)) as injected:
            KilledSink(tmp_path, feed, settings, lambda: interrupt_briefly(server)).survive(
                victims("server", 20),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job that writes to Redis in {mode}"),
            )
            feed.assert_last_values()
