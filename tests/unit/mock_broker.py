"""The brokers that librdkafka has for tests, each in the process and for the life of a bulk client."""

from __future__ import annotations

import ctypes
import time
from contextlib import closing
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from penstock.brokers.bulk_client import BulkClient

TOPIC: Final = "heaters"
# Their topics have so many partitions.
PARTITIONS: Final = 4
MOCK: Final = {"test.mock.num.brokers": "1", "allow.auto.create.topics": "true", "linger.ms": "0"}


def bootstrap_of(client: BulkClient) -> str:
    """The address of the broker that librdkafka has for this client."""
    client._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    client._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    cluster = ctypes.c_void_p(client._library.rd_kafka_handle_mock_cluster(ctypes.c_void_p(client._client)))
    address: bytes = client._library.rd_kafka_mock_cluster_bootstraps(cluster)
    return address.decode()


def read(bootstrap: str, count: int, topic: str = TOPIC) -> list[list[tuple[bytes | None, bytes | None]]]:
    """The keys and values of messages in each partition, once there are so many."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False}
    found: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    with closing(Consumer(settings)) as client:
        client.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        deadline_s = time.monotonic() + 30
        while sum(map(len, found)) < count and time.monotonic() < deadline_s:
            for one in client.consume(count, 0.05):
                assert one.error() is None
                number = one.partition()
                assert number is not None
                found[number].append((one.key(), one.value()))
    return found
