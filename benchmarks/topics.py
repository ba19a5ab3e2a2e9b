"""Topics: write and read the example's messages on Kafka with plain clients, in bulk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types leave these out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.wire import decode_commands, reading_messages, setting_message
from benchmarks.workload import Commands, Readings, Rooms
from penstock.machine.kafka_broker import KafkaBroker

__all__ = [
    "Output",
    "Topics",
    "broker_or_own",
    "consumer",
    "count_records",
    "create_topic",
    "delete_topic",
    "load_readings",
    "load_settings",
    "load_values",
    "producer",
    "read_commands",
    "read_values",
]

_PATIENCE_S: Final = 30.0
# Without it, clients write that their broker is gone when a benchmark ends, or stops its broker.
_NO_LOG: Final = 0
_PIECE: Final = 100_000


@contextlib.contextmanager
def broker_or_own(given: KafkaBroker | None) -> Iterator[KafkaBroker]:
    """Return the given broker, or a new one that ends with the block."""
    if given is not None:
        yield given
        return
    with KafkaBroker(is_lasting=True) as broker:
        yield broker


def create_topic(broker: KafkaBroker, name: str, partitions: int) -> None:
    """Create a topic whose records are timestamped by the broker."""
    broker.create_topic(name, partitions)
    entry = ConfigEntry(
        "message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": _NO_LOG})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(_PATIENCE_S)


@dataclass(frozen=True)
class Topics:
    """Where a contestant reads and writes: a broker's address and its topics."""

    bootstrap: str
    readings: str
    settings: str
    heaters: str

    @classmethod
    def named(cls, broker: KafkaBroker, name: str) -> Self:
        """Return the topics whose names begin with this one."""
        return cls(broker.bootstrap, f"{name}-readings", f"{name}-settings", f"{name}-heaters")

    def create(self, broker: KafkaBroker, partitions: int) -> None:
        """Create the topics; that of settings has one partition."""
        create_topic(broker, self.settings, 1)
        for topic in (self.readings, self.heaters):
            create_topic(broker, topic, partitions)


def delete_topic(broker: KafkaBroker, name: str) -> None:
    """Delete a topic, so that its records take no disk while others are measured."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": _NO_LOG})
    for future in admin.delete_topics([name]).values():
        future.result(_PATIENCE_S)


def producer(broker: KafkaBroker, **settings: Any) -> Producer:
    """Return a plain producer with large queues."""
    sizes = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20}
    fixed = {"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "log_level": _NO_LOG}
    return Producer({**fixed, **sizes, **settings})


def consumer(broker: KafkaBroker, topic: str, *, new_records: bool = False) -> Consumer:
    """Return a consumer of committed records without a group, of the whole topic or of new records only."""
    found = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "log_level": _NO_LOG,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": not new_records,
            # Who reads a topic to its end gains nothing from asking often; who waits for records does.
            **({"fetch.wait.max.ms": 5} if new_records else {}),
        }
    )
    partitions = found.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
    assigned = [TopicPartition(topic, number, 0) for number in partitions]
    if new_records:
        # Not OFFSET_END, which the client would resolve later, after the first records have come.
        assigned = [TopicPartition(topic, number, _end(found, topic, number)) for number in partitions]
    found.assign(assigned)
    return found


def count_records(client: Consumer, topic: str, partitions: int) -> int:
    """Return the number of records that a topic has got, by the ends of its partitions."""
    return sum(_end(client, topic, number) for number in range(partitions))


def _end(client: Consumer, topic: str, partition: int) -> int:
    found: tuple[int, int] = client.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=_PATIENCE_S, cached=False
    )
    return found[1]


def load_readings(broker: KafkaBroker, topic: str, partitions: int, readings: Readings) -> None:
    """Put readings on a topic, each sensor's on one partition and in order, with the sensor as the key."""
    client = producer(broker, **{"linger.ms": 100})
    for begin in range(0, len(readings), _PIECE):
        sensors = readings.sensor_id[begin : begin + _PIECE].tolist()
        values = reading_messages(sensors, readings.temperature[begin : begin + _PIECE])
        _produce(client, topic, partitions, sensors, values)
    _flush(client)


def load_settings(broker: KafkaBroker, topic: str, rooms: Rooms) -> None:
    """Put the settings of all rooms on a topic of one partition."""
    delta = rooms.delta
    values = [
        setting_message(sensor, desired, delta) for sensor, desired in enumerate(rooms.desired.tolist())
    ]
    load_values(broker, topic, 1, range(rooms.count), values)


def load_values(
    broker: KafkaBroker, topic: str, partitions: int, keys: Sequence[int], values: Sequence[bytes]
) -> None:
    """Put records on a topic, those of a key on one partition and in order."""
    client = producer(broker, **{"linger.ms": 100})
    _produce(client, topic, partitions, keys, values)
    _flush(client)


def _produce(
    client: Producer, topic: str, partitions: int, sensors: Sequence[int], values: Sequence[bytes]
) -> None:
    for sensor, value in zip(sensors, values, strict=True):
        while True:
            try:
                client.produce(topic, value, str(sensor), sensor % partitions)
                break
            except BufferError:
                client.poll(0.05)
    client.poll(0)


def _flush(client: Producer) -> None:
    if client.flush(_PATIENCE_S * 4):
        raise RuntimeError("The broker did not take all records in time.")


@dataclass(frozen=True)
class Output:
    """The commands on a topic, and when the broker took the first and the last of them, in seconds."""

    commands: Commands
    first_s: float
    last_s: float


def read_commands(broker: KafkaBroker, topic: str) -> Output:
    """Return all committed commands on a topic."""
    values, taken = _read(broker, topic)
    first, last = (min(taken), max(taken)) if taken else (float("inf"), 0.0)
    return Output(Commands.in_order(*decode_commands(values)), first / 1000, last / 1000)


def read_values(broker: KafkaBroker, topic: str) -> list[bytes]:
    """Return the values of all committed records on a topic, those of a partition in order."""
    return _read(broker, topic)[0]


def _read(broker: KafkaBroker, topic: str) -> tuple[list[bytes], list[int]]:
    """Return values of all committed records, and when the broker took each, in milliseconds."""
    client = consumer(broker, topic)
    waiting = {partition.partition for partition in client.assignment()}
    values: list[bytes] = []
    taken: list[int] = []
    deadline = time.monotonic() + _PATIENCE_S
    while waiting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"The topic {topic} was not read to its end in time.")
        for message in client.consume(_PIECE, timeout=0.5):
            deadline = time.monotonic() + _PATIENCE_S
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
                taken.append(message.timestamp()[1])
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own code
                waiting.discard(message.partition())
            else:
                raise KafkaException(error)
    client.close()
    return values, taken
