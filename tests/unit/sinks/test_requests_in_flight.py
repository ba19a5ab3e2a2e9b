"""How many requests a producer has in flight, and that its thread sleeps meanwhile."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages
from penstock.sinks.requests_in_flight import most_requests, with_requests

ANSWER_MS = 200
# librdkafka's mock brokers have topics of four partitions.
PARTITIONS = 4


def heaters(**client: str) -> KafkaBinding:
    binding = parse_binding("heaters", "kafka://nowhere:9092/heaters", "sink")
    assert isinstance(binding, KafkaBinding)
    return replace(binding, client=client)


@pytest.mark.parametrize(
    ("leaders", "most"),
    [
        ([1], 1),
        ([1, 1], 1),
        ([1, 1, 1, 1], 3),
        ([1, 2, 3, 1, 2, 3], 1),
        ([1] * 12 + [2] * 3, 2),
        ([1] * 50, 5),
        ([], 1),
    ],
)
def test_one_partition_of_each_broker_has_to_wait(leaders: list[int], most: int) -> None:
    """There are fewer requests in flight than partitions, but at least one, and no more than Kafka can order."""
    assert most_requests(leaders) == most


@pytest.mark.parametrize("name", ["max.in.flight", "max.in.flight.requests.per.connection"])
def test_the_number_in_the_uri_counts(name: str) -> None:
    """A number set under either name is kept, and no partitions are queried."""
    binding = heaters(**{name: "2"})
    assert with_requests(binding, {}) == binding


def test_a_producer_takes_no_core_while_a_broker_thinks() -> None:
    """Messages that wait for other requests' answers use no processor time."""
    most = most_requests([1] * PARTITIONS)
    broker = {"test.mock.num.brokers": "1", "test.mock.broker.rtt": str(ANSWER_MS)}
    settings = {"allow.auto.create.topics": "true", "linger.ms": "20", "max.in.flight": str(most)}
    producer = PlainProducer(heaters(**broker, **settings))
    keys = [str(number).encode() for number in range(400)]
    messages = Messages(pa.array([b"on"] * len(keys)), pa.array(keys))
    try:
        producer.send(messages)
        producer.flush()
        producer.send(messages)
        time.sleep(ANSWER_MS / 4000)
        producer.send(messages)
        before_s = time.process_time()
        time.sleep(ANSWER_MS / 2000)
        taken_s = time.process_time() - before_s
    finally:
        producer.close()
    assert taken_s < ANSWER_MS / 2000 / 20
