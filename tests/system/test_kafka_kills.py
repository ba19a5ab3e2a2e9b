"""Kafka to Kafka at megabytes per second: whatever is killed, no output is lost, and none is doubled.

An exactly-once sink is read with `read_committed`. An at-least-once sink repeats outputs identically.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from job_process import JobProcess, await_true, run_arguments
from reliability import noting
from sink_kills import BUSY_S, await_progress, interrupt_briefly, kill_process, newest_commit, victims
from steady_feed import feed_steadily

from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from topics import producer

JOB = Path(__file__).with_name("noted_job.py")
PARTITIONS = 3
SENSORS = 20
# About 3,000 readings of 700 bytes per second: the backlog of a job's start makes blocks that Spark passes in
# files.
ROUNDS = 15
NOTE = "".join(random.Random(1).choices("abcdefghijklmnop", k=650))
# A run that continues without the killed process must commit this many more.
MORE = 3


class Topics:
    """The topics of the job: readings of all sensors in turn, and its output."""

    def __init__(self, broker: KafkaBroker, folder: Path, delivery: str) -> None:
        self._delivery = delivery
        self._bootstrap = broker.bootstrap
        self._folder = folder
        self._names = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("readings", "seen")}
        for name in self._names.values():
            broker.create_topic(name, PARTITIONS)
        self._producer = producer(self._bootstrap)
        self._numbers = 0
        # Whether blocks of a micro-batch were seen in files.
        self.had_files = False

    def settings(self, interval_ms: int, *, bounded: bool = False) -> RunSettings:
        place = f"kafka://{self._bootstrap}"
        return RunSettings(
            bindings={
                "readings": f"{place}/{self._names['readings']}?start=earliest",
                "seen": f"{place}/{self._names['seen']}?delivery={self._delivery}",
            },
            checkpoint=str(self._folder / "checkpoint"),
            parallelism=2,
            checkpoint_interval_ms=interval_ms,
            bounded=bounded,
        )

    def feeding(self) -> AbstractContextManager[None]:
        """Send readings while the block runs. Messages that the broker missed while it was down are sent again."""
        return feed_steadily(self._send, 0.1)

    def _send(self) -> None:
        for _ in range(ROUNDS):
            for sensor in range(SENSORS):
                reading = {"sensor": sensor, "number": self._numbers, "note": f"{self._numbers} {NOTE}"}
                self._produce(json.dumps(reading).encode(), b"%d" % sensor)
            self._numbers += 1
        self._producer.poll(0)
        # A folder may disappear while it is examined.
        with suppress(FileNotFoundError):
            self.had_files = self.had_files or any(self._folder.glob("run-*/spark/*/*/bodies-*/*"))

    def _produce(self, value: bytes, key: bytes) -> None:
        """Send a message, waiting for room in the queue if needed."""
        while True:
            try:
                self._producer.produce(self._names["readings"], value, key)
                return
            except BufferError:
                self._producer.poll(0.1)

    def assert_each_in_order(self) -> None:
        """Check that a reader finds the expected counts, with their readings."""
        assert self._producer.flush(60) == 0
        counts = dict.fromkeys(range(SENSORS), 0)
        for value in self._committed():
            seen = json.loads(value)
            note = seen.pop("note")
            sensor, count = seen["sensor"], seen["count"]
            assert seen == {"sensor": sensor, "number": count - 1, "count": count}
            assert note == f"{count - 1} {NOTE}"
            if self._delivery == "exactly-once" or count > counts[sensor]:
                assert count == counts[sensor] + 1
                counts[sensor] = count
        assert counts == dict.fromkeys(range(SENSORS), self._numbers)

    def _committed(self) -> Iterator[bytes]:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        try:
            for partition in range(PARTITIONS):
                consumer.assign([TopicPartition(self._names["seen"], partition, 0)])
                while (message := consumer.poll(20)) is not None and message.error() is None:
                    yield message.value()
                assert message is not None, "the consumer hears nothing"
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        finally:
            consumer.close()


def strike(victim: str, job: JobProcess, broker: KafkaBroker, folder: Path) -> None:
    """Kill a victim; a run that does not end with an error continues."""
    before = newest_commit(folder)
    if victim == "broker":
        interrupt_briefly(broker)
    else:
        kill_process(victim, job)
    if victim in ("driver", "JVM"):
        return
    await_true(
        lambda: not job.running or newest_commit(folder) >= before + MORE,
        lambda: f"neither ended nor went on: {job.err}",
        BUSY_S,
    )
    if not job.running:
        result = job.wait()
        assert result.code in (1, 3), result
        assert result.err.strip(), "the job failed without a word"
        assert "Traceback" not in result.err, result.err


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_kills_of_a_loaded_job_and_its_broker(tmp_path: Path, delivery: str, interval_ms: int) -> None:
    """Twenty kills in each mode; a run that survives the kill of a part continues, and is killed again."""
    seed = (32 if interval_ms else 31) + (0 if delivery == "exactly-once" else 2)
    chance = random.Random(seed)
    does = f"writes {delivery.replace('-', ' ')} in {'real time' if interval_ms else 'micro-batches'}"
    with (
        KafkaBroker(tmp_path / "kafka") as broker,
        noting("Kafka sinks", "-k kills_of_a_loaded_job_and_its_broker", str(seed)) as injected,
    ):
        topics = Topics(broker, tmp_path, delivery)
        arguments = run_arguments(JOB, topics.settings(interval_ms))
        with topics.feeding():
            for victim in victims("broker", 20):
                with JobProcess(arguments, tmp_path) as job:
                    await_progress(job, lambda: newest_commit(tmp_path), BUSY_S)
                    time.sleep(chance.uniform(0, 2))
                    injected.add(f"{victim} of a loaded job that {does}")
                    strike(victim, job, broker, tmp_path)
        last = run_arguments(JOB, topics.settings(interval_ms, bounded=True))
        with JobProcess(last, tmp_path) as job:
            assert job.wait(BUSY_S).code == 0, job.err
        topics.assert_each_in_order()
        assert topics.had_files == (not interval_ms)
