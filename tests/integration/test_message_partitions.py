"""The partition that a Kafka sink chooses for a message, on a real broker."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from java_hashes import MURMUR2
from test_topic_messages import PARTITIONS, read, sink_of
from test_topic_messages import topic as topic

from penstock.machine.kafka_broker import KafkaBroker
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages


def test_keys_go_where_java_s_client_puts_them(kafka: KafkaBroker, topic: str) -> None:
    """So records can be joined by key with those of Java producers."""
    _, binding = sink_of(kafka, topic, "")
    producer = PlainProducer.of(binding)
    keys = pa.array(list(MURMUR2), pa.binary())
    producer.send(Messages(keys, keys))
    producer.flush()
    found = {one.key(): one.partition() for one in read(kafka, topic, len(MURMUR2))}
    assert found == {key: (value & 0x7FFFFFFF) % PARTITIONS for key, value in MURMUR2.items()}


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_field_chooses_the_partition(kafka: KafkaBroker, topic: str, delivery: str) -> None:
    """Java's client would choose so for a key of that content; the real key decides where the field is null."""
    sink, _ = sink_of(kafka, topic, f"key=n&partition_by=site&delivery={delivery}")
    sink.prepare("line", "")
    kind = record_type("site STRING, n INT")
    records = [{"site": value.decode(), "n": 21} for value in MURMUR2]
    records.append({"site": None, "n": 21})
    task = sink.task(TaskContext(0, 0, 0, "line"), kind)
    task.write(pa.RecordBatch.from_pylist(records, kind.schema), None)
    task.finish()
    messages = read(kafka, topic, len(records))
    found = {json.loads(one.value())["site"]: one.partition() for one in messages}
    expected = {key.decode(): (value & 0x7FFFFFFF) % PARTITIONS for key, value in MURMUR2.items()}
    assert found == {**expected, None: expected["21"]}
    assert {one.key() for one in messages} == {b"21"}
