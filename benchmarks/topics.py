"""Topics: write and read the example's protobuf messages on Kafka with plain clients, in bulk."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types leave these out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.processes import EXAMPLE
from benchmarks.workload import OFF, ON, Commands, Readings, Rooms
from penstock.machine.kafka_broker import KafkaBroker

sys.path.insert(0, str(EXAMPLE))
import messages_pb2 as messages  # the example's folder must be on the path first

__all__ = [
    "Output",
    "broker_or_own",
    "consumer",
    "create_topic",
    "load_readings",
    "load_settings",
    "producer",
    "read_commands",
    "reading_message",
    "sensor_and_code",
]

_PATIENCE_S: Final = 30.0
_PIECE: Final = 100_000
_CODES: Final = {messages.On: ON, messages.Off: OFF}


@contextlib.contextmanager
def broker_or_own(given: KafkaBroker | None) -> Iterator[KafkaBroker]:
    """Return the given broker, or a new one that ends with the block."""
    if given is not None:
        yield given
        return
    with KafkaBroker() as broker:
        yield broker


def create_topic(broker: KafkaBroker, name: str, partitions: int) -> None:
    """Create a topic whose records are timestamped by the broker."""
    broker.create_topic(name, partitions)
    entry = ConfigEntry(
        "message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(_PATIENCE_S)


def producer(broker: KafkaBroker, **settings: Any) -> Producer:
    """Return a plain producer with large queues."""
    sizes = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20}
    return Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", **sizes, **settings})


def consumer(broker: KafkaBroker, topic: str) -> Consumer:
    """Return a consumer of committed records that reads the whole topic, without a group."""
    found = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    partitions = found.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
    found.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return found


def reading_message(sensor_id: int, temperature: float) -> bytes:
    """Return the wire form of a reading."""
    sent: bytes = messages.SensorData(sensorID=sensor_id, temperature=temperature).SerializeToString()
    return sent


def load_readings(broker: KafkaBroker, topic: str, partitions: int, readings: Readings) -> None:
    """Put readings on a topic, each sensor's on one partition and in order, with the sensor as the key."""
    client = producer(broker, **{"linger.ms": 100})
    for begin in range(0, len(readings), _PIECE):
        sensors = readings.sensor_id[begin : begin + _PIECE].tolist()
        temperatures = readings.temperature[begin : begin + _PIECE].tolist()
        values = map(reading_message, sensors, temperatures)
        _produce(client, topic, partitions, sensors, list(values))
    _flush(client)


def load_settings(broker: KafkaBroker, topic: str, rooms: Rooms) -> None:
    """Put the settings of all rooms on a topic of one partition."""
    client = producer(broker, **{"linger.ms": 100})
    values = [
        messages.TemperatureControl(
            sensorID=sensor, desired=desired, upDelta=rooms.delta, downDelta=rooms.delta
        ).SerializeToString()
        for sensor, desired in enumerate(rooms.desired.tolist())
    ]
    _produce(client, topic, 1, list(range(rooms.count)), values)
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


def sensor_and_code(message: Message) -> tuple[int, int]:
    """Return the sensor and the command (ON or OFF) from a command's wire form."""
    command = messages.HeaterControl.FromString(message.value())
    return command.sensorID, _CODES[command.command]


@dataclass(frozen=True)
class Output:
    """The commands on a topic, and when the broker took the first and the last of them, in seconds."""

    commands: Commands
    first_s: float
    last_s: float


def read_commands(broker: KafkaBroker, topic: str) -> Output:
    """Return all committed commands on a topic."""
    client = consumer(broker, topic)
    waiting = {partition.partition for partition in client.assignment()}
    sensors: list[int] = []
    codes: list[int] = []
    first, last = float("inf"), 0.0
    deadline = time.monotonic() + _PATIENCE_S
    while waiting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"The topic {topic} was not read to its end in time.")
        for message in client.consume(_PIECE, timeout=0.5):
            deadline = time.monotonic() + _PATIENCE_S
            error = message.error()
            if error is None:
                sensor, code = sensor_and_code(message)
                sensors.append(sensor)
                codes.append(code)
                taken = message.timestamp()[1]
                first, last = min(first, taken), max(last, taken)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own code
                waiting.discard(message.partition())
            else:
                raise KafkaException(error)
    client.close()
    order: npt.NDArray[np.int8] = np.array(codes, np.int8)
    return Output(Commands.in_order(sensors, order), first / 1000, last / 1000)
