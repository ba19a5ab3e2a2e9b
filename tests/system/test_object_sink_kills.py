"""Jobs that write to an object store: each output is there once, whichever process or server is killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB, SENSORS
from job_in_session import JobInSession
from job_process import JobProcess, run_arguments
from object_feed import ObjectFeed, StoredReadings
from pyspark.sql import SparkSession
from reliability import noting
from s3_server import SECRET, S3Server
from sink_kills import BUSY_S, await_progress, finish, kill_process

VICTIMS = ("driver", "JVM", "worker")


def test_a_job_writes_each_output_once_in_both_modes(
    tmp_path: Path, spark: SparkSession, s3: S3Server
) -> None:
    """Micro-batches run first, then real time; the checkpoint has no secret."""
    feed = ObjectFeed(tmp_path, s3)
    for interval_ms in (0, 1000):
        feed.write()
        feed.write()
        settings = feed.settings(tmp_path, bounded=True, checkpoint_interval_ms=interval_ms)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
    feed.assert_exactly_once()
    checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not [path for path in checkpoint if SECRET.encode() in path.read_bytes()]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [ObjectFeed, StoredReadings])
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_object_store(
    tmp_path: Path, interval_ms: int, kind: type[ObjectFeed]
) -> None:
    """Ten kills in each mode, under load: within each run the server, and once the run continues, a process."""
    seed = (12 if interval_ms else 11) + (2 if kind is StoredReadings else 0)
    does = "reads and writes objects" if kind is StoredReadings else "writes to an object store"
    suite = "object store sources" if kind is StoredReadings else "object store sinks"
    chance = random.Random(seed)
    with S3Server(tmp_path) as server:
        feed = kind(tmp_path, server)
        feed.write()
        arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path, checkpoint_interval_ms=interval_ms))
        with noting(suite, "-k kills_of_a_job_and_its_object_store", str(seed)) as injected:
            with feed.feeding():
                mode = "real time" if interval_ms else "micro-batches"
                for number in range(5):
                    with JobProcess(arguments, tmp_path) as job:
                        await_progress(job, lambda: len(feed.rows()), BUSY_S)
                        injected.add(f"server of a job that {does} in {mode}")
                        server.kill()
                        time.sleep(chance.uniform(0, 2))
                        server.start()
                        # The same run continues.
                        await_progress(job, lambda: len(feed.rows()), BUSY_S)
                        time.sleep(chance.uniform(0, 2))
                        victim = VICTIMS[number % len(VICTIMS)]
                        injected.add(f"{victim} of a job that {does} in {mode}")
                        kill_process(victim, job)
                        time.sleep(chance.uniform(0, 1))
            finish(arguments, tmp_path, lambda: len(feed.rows()), feed.files * SENSORS, BUSY_S)
            feed.assert_exactly_once()
