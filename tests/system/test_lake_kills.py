"""Jobs that write to a lake table: each output is there once, whichever process is killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from file_feed import COUNTING_JOB, SENSORS
from job_in_session import JobInSession
from job_process import JobProcess, busiest, run_arguments
from lake_feed import Feed, LakeFeed
from lake_tables import LAKES
from pyspark.sql import SparkSession
from reliability import noting
from sink_kills import BUSY_S, await_progress, finish, kill_process

NAMES = {"delta": "Delta Lake", "iceberg": "Iceberg"}
# The number of kills of each.
VICTIMS = {"driver": 7, "JVM": 7, "worker": 6}


# Here one lake is written and the other is read; `make chaos` covers both directions of both.
@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.chaos)])
def test_a_job_writes_each_output_once_in_both_modes(tmp_path: Path, spark: SparkSession, lake: str) -> None:
    """It continues from its checkpoint, in real time after micro-batches, while the table is compacted."""
    feed = Feed(tmp_path, lake)
    for interval_ms in (0, 1000):
        feed.write()
        settings = feed.settings(tmp_path, "sensor", bounded=True, checkpoint_interval_ms=interval_ms)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
        feed.assert_exactly_once()
        if lake == "delta":
            DeltaTable(tmp_path / "table").optimize.compact()


@pytest.mark.parametrize("lake", [pytest.param("delta", marks=pytest.mark.chaos), "iceberg"])
def test_a_job_reads_what_is_added_to_a_table_once_in_both_modes(
    tmp_path: Path, spark: SparkSession, lake: str
) -> None:
    feed = LakeFeed(tmp_path, lake)
    for interval_ms in (0, 1000):
        feed.write()
        feed.write()
        settings = feed.settings(tmp_path, bounded=True, checkpoint_interval_ms=interval_ms)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
        feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("lake", LAKES)
def test_kills_of_a_job_that_reads_a_lake(tmp_path: Path, lake: str, interval_ms: int) -> None:
    """Drivers and workers are killed, while the table grows; each of its rows must have counted once."""
    seed = 10 if interval_ms else 9
    chance = random.Random(f"{seed} {lake}")
    feed = LakeFeed(tmp_path, lake)
    feed.write()
    arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path, checkpoint_interval_ms=interval_ms))
    mode = "real time" if interval_ms else "micro-batches"
    with noting("lake sources", "-k kills_of_a_job_that_reads_a_lake", str(seed)) as injected:
        with feed.feeding():
            for number in range(10):
                victim = ("driver", "worker")[number % 2]
                with JobProcess(arguments, tmp_path) as job:
                    await_progress(job, feed.count, BUSY_S)
                    time.sleep(chance.uniform(0, 2))
                    injected.add(f"{victim} of a job that reads from {NAMES[lake]} in {mode}")
                    kill_process(victim, job, busiest)
                    time.sleep(chance.uniform(0, 2))
        finish(arguments, tmp_path, feed.count, feed.files * SENSORS, BUSY_S)
        feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("victim", list(VICTIMS))
@pytest.mark.parametrize("lake", LAKES)
def test_kills_of_a_job_that_writes_to_a_lake(
    tmp_path: Path, lake: str, victim: str, interval_ms: int
) -> None:
    """Twenty kills in each mode, under load; each output must be in the table once."""
    seed = 8 if interval_ms else 7
    chance = random.Random(f"{seed} {victim}")
    feed = Feed(tmp_path, lake)
    feed.write()
    arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path, checkpoint_interval_ms=interval_ms))
    mode = "real time" if interval_ms else "micro-batches"
    with noting("lake sinks", "-k kills_of_a_job_that_writes_to_a_lake", str(seed)) as injected:
        with feed.feeding():
            for _ in range(VICTIMS[victim]):
                with JobProcess(arguments, tmp_path) as job:
                    await_progress(job, feed.count, BUSY_S)
                    time.sleep(chance.uniform(0, 2))
                    injected.add(f"{victim} of a job that writes to {NAMES[lake]} in {mode}")
                    kill_process(victim, job, busiest)
                    time.sleep(chance.uniform(0, 2))
        finish(arguments, tmp_path, feed.count, feed.files * SENSORS, BUSY_S)
        feed.assert_exactly_once()
