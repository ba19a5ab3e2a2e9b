"""A job that counts how often each number came, and passes the numbers on; with the topic that it reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["keep_job", "write_numbers"]


@dataclass
class Number:
    """A number."""

    n: int


class Keep(ps.ProcessFunction):
    """Counts the records of each number."""

    seen = ps.ValueState(int)

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        """Count the number, and pass it on."""
        self.seen.set((self.seen.get() or 0) + 1)
        yield number


def keep_job() -> ps.Job:
    """Return the job, from the stream `numbers` to the sink `kept`."""
    job = ps.Job("keep", key_groups=2)
    job.data_stream("numbers", schema=Number).key_by("n").process("keep", Keep()).sink_to("kept")
    return job


def write_numbers(kafka: KafkaBroker, topic: str, values: Iterable[int]) -> None:
    """Write numbers to the first partition of a topic."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, json.dumps({"n": value}).encode(), partition=0)
    assert producer.flush(30) == 0
