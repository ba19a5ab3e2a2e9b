"""Kill -9 in real time with at-least-once outputs: a reader that looks at origins has each command once.

What a killed interval has written is in the topic, and the interval begins anew with other rounds.
"""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import noting

from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from topics import producer

JOB = Path(__file__).with_name("switch_job.py")
PARTITIONS = 2
SENSORS = 30
INTERVAL_MS = 2000


class Sender(threading.Thread):
    """Sends readings until it is closed, those of a sensor to one partition."""

    def __init__(self, kafka: KafkaBroker, topic: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._producer = producer(kafka.bootstrap)
        self._topic = topic
        self._random = random.Random(seed)
        self._closing = threading.Event()
        self.readings: list[tuple[int, float]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self.join()
        assert self._producer.flush(30) == 0

    def run(self) -> None:
        while not self._closing.wait(0.02):
            for _ in range(5):
                sensor, temperature = self._random.randrange(SENSORS), self._random.uniform(5, 35)
                self.readings.append((sensor, temperature))
                value = json.dumps({"sensor_id": sensor, "temperature": temperature}).encode()
                self._producer.produce(self._topic, value, b"%d" % sensor)
            self._producer.poll(0)


class Reader:
    """Reads the commands, with and without regard to their origins."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": uuid.uuid4().hex,
            "fetch.wait.max.ms": 10,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._newest: dict[tuple[int, str], tuple[int, ...]] = {}
        self._names: set[bytes] = set()
        self.count = 0
        self.by_numbers: dict[int, list[str]] = {}
        self.by_names: dict[int, list[str]] = {}

    def read(self, timeout_s: float = 0.1) -> bool:
        """Read what comes in some time; return whether anything has."""
        found = self._consumer.consume(1000, timeout_s)
        for message in found:
            assert message.error() is None, message.error()
            self._take(message)
        return bool(found)

    def _take(self, message: Any) -> None:
        self.count += 1
        record = json.loads(message.value())
        origin = dict(message.headers())["penstock-origin"]
        place, *numbers = origin.decode().rsplit("/", 3)
        in_partition = message.partition(), place
        found = tuple(map(int, numbers))
        said = f"{record['number']} {record['command']}"
        if found > self._newest.get(in_partition, (-1, -1, -1)):
            self._newest[in_partition] = found
            self.by_numbers.setdefault(record["sensor_id"], []).append(said)
        if origin not in self._names:
            self._names.add(origin)
            self.by_names.setdefault(record["sensor_id"], []).append(said)

    def close(self) -> None:
        self._consumer.close()


def fold(readings: list[tuple[int, float]]) -> dict[int, list[str]]:
    """The commands of each sensor, by plain Python."""
    found: dict[int, list[str]] = {}
    for sensor, temperature in readings:
        command = "OFF" if temperature > 23 else "ON" if temperature < 17 else None
        known = found.get(sensor, [])
        if command is not None and not (known and known[-1].endswith(f" {command}")):
            found.setdefault(sensor, []).append(f"{len(known) + 1} {command}")
    return found


def kill_within_an_interval(job: JobProcess, reader: Reader, victim: str, wait_s: float) -> None:
    """Kill a worker or the driver while it writes commands that are not committed."""
    before = reader.count
    await_true(
        lambda: (reader.read() and reader.count > before + 20) or not job.running,
        lambda: f"no commands: {job.out} {job.err}",
    )
    time.sleep(wait_s)
    assert job.running, f"it ended by itself: {job.out} {job.err}"
    if victim == "worker":
        kill(min(job.workers()), signal.SIGKILL)
    else:
        job.signal(signal.SIGKILL)
    job.wait()


def survive(kafka: KafkaBroker, spark: SparkSession, folder: Path, seed: int, victims: list[str]) -> None:
    """Kill the victims one after the other, let the job finish, and compare."""
    made = random.Random(seed)
    topics = [f"origins-{part}-{uuid.uuid4().hex[:8]}" for part in ("in", "out")]
    for topic in topics:
        kafka.create_topic(topic, PARTITIONS)
    settings = RunSettings(
        bindings={
            "readings": f"kafka://{kafka.bootstrap}/{topics[0]}?start=earliest",
            "heaters": f"kafka://{kafka.bootstrap}/{topics[1]}?origin=true",
        },
        checkpoint=str(folder / "checkpoint"),
        checkpoint_interval_ms=INTERVAL_MS,
    )
    reader = Reader(kafka, topics[1])
    with Sender(kafka, topics[0], seed) as sender:
        for victim in victims:
            with JobProcess(run_arguments(JOB, settings), folder) as job:
                kill_within_an_interval(job, reader, victim, made.uniform(0, INTERVAL_MS / 1000))
    with JobInSession(spark, JOB, dataclasses.replace(settings, bounded=True)) as last:
        summary = last.wait()
    expected = fold(sender.readings)
    count = sum(map(len, expected.values()))
    await_true(lambda: not reader.read(1.0), lambda: f"there is no end: {reader.count} of {count}")
    reader.close()
    assert reader.by_numbers == expected
    assert reader.by_names == expected
    assert reader.count > count, "nothing was written again"
    assert (summary.status, summary.dead_letters) == ("finished", 0)


def test_a_reader_of_origins_has_each_command_once(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """After kills of a worker and of the driver: none is missing, none is there twice."""
    survive(kafka, spark, tmp_path, 1, ["worker", "driver"])


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_many_kills_with_origins(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession) -> None:
    """As above, with 30 kills."""
    with noting("kills of jobs", "-k test_many_kills_with_origins", "21") as injected:
        victims = random.Random(21).choices(["worker", "driver"], k=30)
        for victim in victims:
            injected.add(f"kill -9 of a {victim}, outputs at least once")
        survive(kafka, spark, tmp_path, 21, victims)
