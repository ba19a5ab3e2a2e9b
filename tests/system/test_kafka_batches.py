"""The newest micro-batch in a Kafka sink, on a real broker, which reveals a checkpoint that has gone back."""

from __future__ import annotations

import time
import uuid

import pyarrow as pa
import pytest
from sink_workers import PARTITIONS, Plain, Worker, bind, values

from penstock.bindings.types import KafkaBinding
from penstock.errors import ExternalSystemError
from penstock.machine.kafka_broker import KafkaBroker
from penstock.sinks import kafka_groups
from penstock.sinks.kafka_producers import TransactionalProducer, TransactionLostError
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_parts import Messages


@pytest.fixture
def binding(kafka: KafkaBroker) -> KafkaBinding:
    topic = f"heaters-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    return bind(kafka, topic, "?delivery=exactly-once")


def test_the_newest_batch_is_that_of_all_sink_partitions(binding: KafkaBinding) -> None:
    """This includes partitions from when the job had more tasks, but no lineages and sinks with similar names."""
    lineage = uuid.uuid4().hex[:8]
    sink = KafkaSink(binding, Plain())
    assert sink.newest(lineage, "") == -1
    worker = Worker(sink, lineage)
    worker.run(3, [b"a"], partition=0)
    worker.run(2, [b"a"], partition=11)
    assert sink.newest(lineage, "") == 3
    worker.run(9, [b"b"], partition=11)
    Worker(sink, f"{lineage}-heaters-1").run(30, [b"c"])
    Worker(sink, f"{lineage}2").run(31, [b"c"])
    assert sink.newest(lineage, "") == 9


def test_a_transaction_that_was_left_open_does_not_hide_the_batch(binding: KafkaBinding) -> None:
    """A worker is killed after it has sent its note of the batch and before it commits."""
    lineage = uuid.uuid4().hex[:8]
    sink = KafkaSink(binding, Plain())
    Worker(sink, lineage).run(4, [b"a"])
    killed = TransactionalProducer(binding, f"penstock-{lineage}-heaters-0")
    killed._begin()
    killed._send_offset(6, "")
    begun_s = time.monotonic()
    assert sink.newest(lineage, "") == 4
    assert time.monotonic() - begun_s < 30, "the broker would end it after two minutes"


@pytest.mark.parametrize("origin", ["false", "true"])
def test_only_the_newest_producer_of_an_id_commits(kafka: KafkaBroker, origin: str) -> None:
    """This includes the note of its batch, whether messages go in bulk or, with headers, one by one."""
    topic = f"heaters-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    binding = bind(kafka, topic, f"?delivery=exactly-once&origin={origin}")
    # With its terminator it is longer than what the C library reserves for such a note.
    note = "note \N{SNOWMAN}" * 5
    texts = [b"%d" % number for number in range(40)]
    old = TransactionalProducer(binding, topic)
    old.send(Messages(pa.array(texts), pa.array([b"key"] * len(texts))))
    old.commit(7, note)
    old.send(Messages(pa.array([b"left open"] * 40)))
    new = TransactionalProducer(binding, topic)
    assert (new.done, new.note) == (7, note)
    with pytest.raises(TransactionLostError, match=r"(?i)fenced|epoch"):
        old.commit(8, "")
    new.send(Messages(pa.array([b"aborted"] * 40)))
    new.abort()
    new.commit(8, "")
    assert TransactionalProducer(binding, topic).note == ""
    assert values(kafka, topic) == sorted(texts)


def test_a_sink_that_is_at_min_once_is_not_asked(kafka: KafkaBroker) -> None:
    """It drops nothing, and has no newest batch."""
    assert KafkaSink(bind(kafka, "any"), Plain()).newest("one", "") == -1


def test_a_broker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before the job starts, and says what is needed."""
    monkeypatch.setattr(kafka_groups, "ANSWER_TIMEOUT_S", 2.0)
    binding = bind(type("Nobody", (), {"bootstrap": "127.0.0.1:9"})(), "t", "?delivery=exactly-once")
    begun_s = time.monotonic()
    with pytest.raises(
        ExternalSystemError, match=r"127\.0\.0\.1:9 does not report which micro-batches it holds"
    ):
        KafkaSink(binding, Plain()).newest("one", "")
    assert time.monotonic() - begun_s < 20
