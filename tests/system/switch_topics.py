"""The switch job's topics and settings: a sender of readings, a reader of commands, and the expected commands."""

from __future__ import annotations

import json
import random
import threading
import uuid
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from topics import producer

__all__ = ["JOB", "PARTITIONS", "Reader", "Sender", "fold", "switch_settings"]

JOB = Path(__file__).with_name("switch_job.py")

PARTITIONS = 2
SENSORS = 30


class Sender(threading.Thread):
    """Sends readings until it is closed, each sensor's to one partition."""

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
    """Reads the commands, and drops repetitions by their origins: by the number within a place, and by the
    whole name.

    `count` is the number of all messages so far, and `newest_ms` the time of the last one.
    """

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
        self.newest_ms = 0
        self.by_numbers: dict[int, list[str]] = {}
        self.by_names: dict[int, list[str]] = {}

    def read(self, timeout_s: float = 0.1) -> bool:
        """Read for a while; return whether anything arrived."""
        found = self._consumer.consume(1000, timeout_s)
        for message in found:
            assert message.error() is None, message.error()
            self._take(message)
        return bool(found)

    def read_all(self) -> None:
        """Read all messages; no writer may be active any more."""
        while self.read(1.0):
            pass

    def _take(self, message: Any) -> None:
        self.count += 1
        self.newest_ms = message.timestamp()[1]
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


def switch_settings(kafka: KafkaBroker, folder: Path, interval_ms: int) -> tuple[RunSettings, str, str]:
    """Return settings of a run with outputs at least once, and its new topics, of readings and of commands."""
    readings, heaters = (f"switch-{part}-{uuid.uuid4().hex[:8]}" for part in ("in", "out"))
    for topic in (readings, heaters):
        kafka.create_topic(topic, PARTITIONS)
    settings = RunSettings(
        bindings={
            "readings": f"kafka://{kafka.bootstrap}/{readings}?start=earliest",
            "heaters": f"kafka://{kafka.bootstrap}/{heaters}?origin=true",
        },
        checkpoint=str(folder / "checkpoint"),
        checkpoint_interval_ms=interval_ms,
    )
    return settings, readings, heaters


def fold(readings: list[tuple[int, float]]) -> dict[int, list[str]]:
    """Return the expected commands of each sensor, in plain Python."""
    found: dict[int, list[str]] = {}
    for sensor, temperature in readings:
        command = "OFF" if temperature > 23 else "ON" if temperature < 17 else None
        known = found.get(sensor, [])
        if command is not None and not (known and known[-1].endswith(f" {command}")):
            found.setdefault(sensor, []).append(f"{len(known) + 1} {command}")
    return found
