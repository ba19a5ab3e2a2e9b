"""Kill -9 in real time with at-least-once outputs: a reader that deduplicates by origin gets each command
once.

The output of a killed interval stays in the topic, and the interval restarts with other rounds.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from pathlib import Path

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, await_true, busiest, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import noting
from switch_topics import JOB, Reader, Sender, fold, switch_settings

from penstock.machine.kafka_broker import KafkaBroker

INTERVAL_MS = 2000
# More than the readings that wait when a run ends can cause.
MANY = 500


def kill_within_an_interval(job: JobProcess, reader: Reader, victim: str, wait_s: float) -> None:
    """Kill a worker or the driver while it writes uncommitted commands."""
    before = reader.count
    await_true(
        lambda: (reader.read() and reader.count > before + 20) or not job.running,
        lambda: f"no commands: {job.out} {job.err}",
    )
    time.sleep(wait_s)
    assert job.running, f"it ended by itself: {job.out} {job.err}"
    if victim == "worker":
        kill(busiest(job.workers()), signal.SIGKILL)
        before = reader.count
        # Between two intervals no Spark task fails with it, and the run continues with new engines.
        await_true(
            lambda: (reader.read() and reader.count > before + MANY) or not job.running,
            lambda: f"neither ended nor went on: {job.out} {job.err}",
        )
    job.signal(signal.SIGKILL)
    job.wait()


def survive(kafka: KafkaBroker, spark: SparkSession, folder: Path, seed: int, victims: list[str]) -> None:
    """Kill the victims one after the other, let the job finish, and compare."""
    made = random.Random(seed)
    settings, readings, heaters = switch_settings(kafka, folder, INTERVAL_MS)
    reader = Reader(kafka, heaters)
    with Sender(kafka, readings, seed) as sender:
        for victim in victims:
            reader.read_all()
            with JobProcess(run_arguments(JOB, settings), folder) as job:
                kill_within_an_interval(job, reader, victim, made.uniform(0, INTERVAL_MS / 1000))
    with JobInSession(spark, JOB, dataclasses.replace(settings, bounded=True)) as last:
        summary = last.wait()
    expected = fold(sender.readings)
    count = sum(map(len, expected.values()))
    reader.read_all()
    reader.close()
    assert reader.by_numbers == expected
    assert reader.by_names == expected
    assert reader.count > count, "nothing was written again"
    assert (summary.status, summary.dead_letters) == ("finished", 0)


@pytest.mark.chaos  # test_kills.py also kills a job in real time
def test_a_reader_of_origins_has_each_command_once(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """A worker is killed, and the driver if the run survives that: no command is missing or doubled."""
    survive(kafka, spark, tmp_path, 1, ["worker"])


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_many_kills_with_origins(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession) -> None:
    """The same with 30 kills."""
    with noting("kills of jobs", "-k test_many_kills_with_origins", "21") as injected:
        victims = random.Random(21).choices(["worker", "driver"], k=30)
        for victim in victims:
            injected.add(f"kill -9 of a {victim}, outputs at least once")
        survive(kafka, spark, tmp_path, 21, victims)
