"""What a Kafka sink adds to a record: keys, partitions, headers and origins, on a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from integration_support import RunJob, read_lines, write_lines

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.machine.kafka_broker import KafkaBroker
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import RecordOrigin, TaskContext
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_parts import Messages

PARTITIONS = 40


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"messages-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS)
    return name


def read(kafka: KafkaBroker, topic: str, count: int) -> list[Any]:
    """Read this many messages, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found = []
    while len(found) < count:
        found += [one for one in consumer.consume(count - len(found), 10) if one.error() is None]
    consumer.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


def sink_of(kafka: KafkaBroker, topic: str, query: str) -> tuple[KafkaSink, KafkaBinding]:
    binding = parse_binding("alarms", f"kafka://{kafka.bootstrap}/{topic}?{query}", "sink")
    assert isinstance(binding, KafkaBinding)
    return KafkaSink(binding, format_of("json", record_type("site STRING, n INT"))), binding


@dataclass
class Reading:
    """A reading."""

    room: int
    site: str
    n: int


class Pass(ps.ProcessFunction):
    """Passes records on."""

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Reading]:
        """Pass the record on."""
        yield record


def pass_job() -> ps.Job:
    job = ps.Job("pass", key_groups=2)
    job.data_stream("readings", schema=Reading).key_by("room").process("pass", Pass()).sink_to("passed")
    return job


@pytest.mark.parametrize("delivery", [pytest.param("at-least-once", marks=pytest.mark.chaos), "exactly-once"])
def test_a_job_says_what_is_around_its_records(
    run_job: RunJob, kafka: KafkaBroker, topic: str, tmp_path: Path, delivery: str
) -> None:
    """The key comes from a field instead of the step's, headers from fields, and each message has a unique
    origin.
    """
    readings = [Reading(n % 3, f"s{n % 2}", n) for n in range(20)]
    write_lines(tmp_path / "in", "one.jsonl", [vars(one) for one in readings])
    parameters = f"key=site&headers=room,n:number&origin=true&delivery={delivery}"
    bindings = {
        "readings": f"jsonl:{tmp_path}/in",
        "passed": f"kafka://{kafka.bootstrap}/{topic}?{parameters}",
    }
    run_job(pass_job(), bindings)
    found = read(kafka, topic, len(readings))
    assert {one.key() for one in found} == {b"s0", b"s1"}
    origins = set()
    for one in found:
        headers, body = dict(one.headers()), json.loads(one.value())
        assert headers["room"] == b"%d" % body["room"]
        assert headers["number"] == b"%d" % body["n"]
        origins.add(headers["penstock-origin"])
    assert len(origins) == len(readings)
    assert {origin.split(b"/")[1] for origin in origins} == {b"pass"}
    assert not read_lines(tmp_path / "checkpoint" / "dead-letters")


def test_upserts_are_messages_with_their_key_and_deletions_have_no_body(
    run_job: RunJob, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Messages are transactional; the newest message of each key is its row."""
    job = ps.Job("towns", key_groups=2)
    cars = job.data_stream(
        "cars", schema="id INT, town STRING, op STRING", changelog=ps.Upserts("id", kind="op")
    )
    towns = cars.group_by("town").aggregate("towns", {"cars": ps.Aggregate.count()})
    towns.sink_to("towns", changes="upserts")
    changes = [[(1, "a", "+U"), (2, "b", "+U")], [(2, "a", "+U")]]
    for number, batch in enumerate(changes):
        rows = [{"id": i, "town": town, "op": op} for i, town, op in batch]
        write_lines(tmp_path / "in", f"{number}.jsonl", rows)
    target = f"kafka://{kafka.bootstrap}/{topic}?delivery=exactly-once"
    run_job(job, {"cars": f"jsonl:{tmp_path}/in?max_files_per_batch=1", "towns": target})
    found: dict[bytes, list[Any]] = {}
    for one in read(kafka, topic, 4):
        found.setdefault(one.key(), []).append(one.value())
    assert found == {
        b"a": [b'{"town":"a","cars":1}', b'{"town":"a","cars":2}'],
        b"b": [b'{"town":"b","cars":1}', None],
    }
    with pytest.raises(BindingError, match="remove key=cars"):
        run_job(job, {"cars": f"jsonl:{tmp_path}/in", "towns": f"{target}&key=cars"})


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_replay_has_the_same_origins(kafka: KafkaBroker, topic: str, delivery: str) -> None:
    """A reader keeps the largest number of each place, and drops messages that are not larger."""
    sink, _ = sink_of(kafka, topic, f"key=site&origin=true&headers=n&delivery={delivery}")
    kind = record_type("site STRING, n INT")
    sink.prepare("line", "")
    for attempt, count in enumerate([6, 10]):
        task: Any = sink.task(TaskContext(4, 0, attempt, "line"), kind)
        offsets = pa.array(range(count), pa.int64())
        task.come_from(RecordOrigin("", "watch", "00001", offsets, is_source=False))
        task.write(
            pa.RecordBatch.from_pylist([{"site": "a", "n": n} for n in range(count)], kind.schema), None
        )
        task.finish()
    is_again = delivery == "at-least-once"
    found = read(kafka, topic, 16 if is_again else 6)
    newest, kept = (-1, -1, -1), []
    for one in found:
        numbers = tuple(map(int, dict(one.headers())["penstock-origin"].split(b"/")[-3:]))
        if numbers > newest:
            newest, kept = numbers, [*kept, json.loads(one.value())["n"]]
    assert kept == [*range(10 if is_again else 6)]


def test_the_size_of_headers_is_the_broker_s(kafka: KafkaBroker) -> None:
    """The largest message that the sink accepts is accepted by the broker, and one byte more is rejected."""
    name = f"small-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, config={"max.message.bytes": "3000"})
    sink, _ = sink_of(kafka, name, "headers=site:h,n&compression.type=none")
    sink.prepare("line", "")
    kind = record_type("site STRING, n INT")
    task: Any = sink.task(TaskContext(0, 0, 0, "line"), kind)
    accepted = rejected = 0
    for size in range(1380, 1500):
        task.write(pa.RecordBatch.from_pylist([{"site": "x" * size, "n": size}], kind.schema), None)
        if task.rejections():
            rejected += 1
            continue
        accepted += 1
        # A batch with one message, as the sink counts it.
        PlainProducer.of(task._encoded.binding).flush()
    assert accepted
    assert rejected
    task.finish()
    over = PlainProducer.of(task._encoded.binding)
    smallest = 1380 + accepted
    batch = pa.RecordBatch.from_pylist([{"site": "x" * smallest, "n": smallest}], kind.schema)
    headers = {"h": pa.array([b"x" * smallest]), "n": pa.array([b"%d" % smallest])}
    with pytest.raises(ExternalSystemError, match="could not be written"):
        write(over, format_of("json", kind).encode(batch), headers)


def write(producer: PlainProducer, values: pa.Array, headers: dict[str, pa.Array]) -> None:
    producer.send(Messages(values, None, headers))
    producer.flush()
