"""Topics: write to and read from a Kafka broker with the plain client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

__all__ = ["Message", "produce", "producer", "read_topic"]


@dataclass(frozen=True)
class Message:
    """A message in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def producer(bootstrap: str) -> Producer:
    """Return a producer that keeps the order of messages, also when the broker is down meanwhile."""
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    return Producer({**settings, "message.timeout.ms": 900_000})


def produce(
    bootstrap: str, topic: str, messages: Iterable[tuple[bytes | None, bytes | None]], partition: int = -1
) -> None:
    """Write (key, value) messages; with `partition` -1 the key decides."""
    client = producer(bootstrap)
    for key, value in messages:
        client.produce(topic, value, key, partition)
    assert client.flush(30) == 0


def read_topic(
    bootstrap: str, topic: str, at_least: int = 0, isolation: str = "read_committed"
) -> list[Message]:
    """Return all messages, partition by partition in order.

    Waits for `at_least` messages: those after a killed worker's open transaction become readable once its
    successor, or the broker after two minutes, has ended it.
    """
    deadline = time.monotonic() + 30
    while True:
        found = _read(bootstrap, topic, isolation)
        if len(found) >= at_least or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _read(bootstrap: str, topic: str, isolation: str) -> list[Message]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    found: list[Message] = []
    try:
        for partition in sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None, f"the consumer of {topic} hears nothing"
                if message.error() is not None:
                    break
                found.append(Message(partition, message.offset(), message.key(), message.value()))
    finally:
        consumer.close()
    return found
