"""Workers of a Kafka sink, several in one process, and the content of its topic."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.machine.kafka_broker import KafkaBroker
from penstock.records.schemas import record_type
from penstock.sinks import kafka_producers
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.kafka_producers import TransactionalProducer
from penstock.sinks.kafka_sink import KafkaSink

__all__ = ["PARTITIONS", "TEXT", "Plain", "Worker", "bind", "consume", "values"]

TEXT = record_type("value BINARY")
PARTITIONS = 2


class Plain:
    """A format whose records are the messages."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        return batch.column("value")


def bind(kafka: KafkaBroker, topic: str, query: str = "") -> KafkaBinding:
    binding = parse_binding("heaters", f"kafka://{kafka.bootstrap}/{topic}{query}", "sink")
    assert isinstance(binding, KafkaBinding)
    return binding


class Worker:
    """A worker process's view of the sink: its own producers, kept between tasks.

    Several workers live in this process and take turns, so their kept state is swapped.
    """

    def __init__(self, sink: KafkaSink, lineage: str) -> None:
        self._sink = sink
        self._lineage = lineage
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        before = kafka_producers._producers
        kafka_producers._producers = self._kept
        try:
            yield
        finally:
            kafka_producers._producers = before

    def start(self, batch_id: int, values: Sequence[bytes], partition: int = 0) -> SinkTask:
        """Write a batch without finishing it."""
        with self._turn():
            task = self._sink.task(TaskContext(batch_id, partition, 0, self._lineage), TEXT)
        self.write(task, values)
        return task

    def write(self, task: SinkTask, values: Sequence[bytes]) -> None:
        """Write more of a batch."""
        with self._turn():
            for value in values:
                keys = pa.array([value[:1]], pa.binary())
                task.write(
                    pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], schema=TEXT.schema), keys
                )

    def send(self, task: Any) -> Callable[[], None]:
        """Send all output of a transaction without committing it; return a generator that continues from there."""
        sent, goes_on = threading.Event(), threading.Event()
        failures: list[BaseException] = []
        with self._turn():
            kept: Any = TransactionalProducer.of(task._binding, task._id)
        commit = kept.commit

        def halt(batch_id: int, note: str) -> None:
            kept.commit = commit
            kept._producer.flush(20)
            sent.set()
            assert goes_on.wait(60)
            commit(batch_id, note)

        def finish() -> None:
            try:
                task.finish()
            except BaseException as e:
                failures.append(e)
            finally:
                sent.set()

        def go_on() -> None:
            with self._turn():
                goes_on.set()
                thread.join(60)
            if failures:
                raise failures[0]

        kept.commit = halt
        thread = threading.Thread(target=finish, daemon=True)
        with self._turn():
            thread.start()
            assert sent.wait(60)
        return go_on

    def finish(self, task: SinkTask) -> None:
        with self._turn():
            task.finish()

    def run(self, batch_id: int, values: Sequence[bytes], partition: int = 0) -> None:
        self.finish(self.start(batch_id, values, partition))


def consume(kafka: KafkaBroker, topic: str, isolation: str = "read_committed") -> list[tuple[Any, Any]]:
    """Return all (key, value) of a topic, partition by partition, as this isolation level sees them.

    The markers of a committed transaction may appear a moment after the commit returns; until then the
    committed data seems to end earlier. So read to the end of all written messages, and wait for their
    transactions to complete.
    """
    ends = written(kafka, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    found = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None, "the consumer waits for a transaction that nobody ends"
                if message.error() is None:
                    found.append((message.key(), message.value()))
                elif message.offset() >= ends[partition]:
                    break
    finally:
        consumer.close()
    return found


def written(kafka: KafkaBroker, topic: str) -> list[int]:
    """Return the end of each partition, after all messages, whatever the outcome of their transactions."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    told = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    ends = {place.partition: future.result(20).offset for place, future in told.items()}
    return [ends[partition] for partition in range(PARTITIONS)]


def values(kafka: KafkaBroker, topic: str, isolation: str = "read_committed") -> list[bytes]:
    return sorted(value for _, value in consume(kafka, topic, isolation))
