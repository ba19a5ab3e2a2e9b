"""A broker that has been away may name no brokers at first. The producer of a sink asks again where it first did."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from forgetful_broker import ForgetfulBroker

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages

PATIENCE_S = 20.0


def wait_until(condition: Callable[[], bool], producer: PlainProducer) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the producer does not ask"
        producer.has_arrived(0)
        time.sleep(0.02)


def test_a_producer_that_hears_of_no_brokers_asks_again() -> None:
    with ForgetfulBroker("seen") as broker:
        binding = parse_binding("seen", f"kafka://{broker.bootstrap}/seen", "sink")
        assert isinstance(binding, KafkaBinding)
        producer = PlainProducer(binding)
        producer.send(Messages(pa.array([b"reading"]), None, {}, None))
        wait_until(lambda: 1 in broker.told, producer)
        broker.has_forgotten = True
        broker.disconnect()
        wait_until(lambda: 0 in broker.told, producer)
        broker.has_forgotten = False
        wait_until(lambda: broker.told[-1] == 1, producer)
