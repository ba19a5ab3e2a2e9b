"""The Kafka sink on a real broker: every record once, despite crashes and zombies."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from java_hashes import murmur2
from sink_workers import PARTITIONS, TEXT, Plain, Worker, bind, consume, values

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import BindingError, ExternalSystemError
from penstock.machine.kafka_broker import KafkaBroker
from penstock.sinks.base import TaskContext
from penstock.sinks.kafka_producers import TransactionalProducer
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_sizes import oversized
from penstock.sources import kafka_source as kafka_source
from penstock.sources.kafka_source import preflight


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"heaters-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def workers(kafka: KafkaBroker, topic: str) -> list[Worker]:
    """Return three workers of one job with exactly-once delivery."""
    sink = KafkaSink(bind(kafka, topic, "?delivery=exactly-once"), Plain())
    assert sink.exactly_once
    lineage = uuid.uuid4().hex[:8]
    sink.prepare(lineage, "")
    return [Worker(sink, lineage) for _ in range(3)]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_records_arrive_in_order_in_the_partition_that_java_would_choose(
    kafka: KafkaBroker, topic: str, delivery: str
) -> None:
    """Keys are kept, records of a key keep their order, and share the partition with other producers' records
    of it.
    """
    sink = KafkaSink(bind(kafka, topic, f"?delivery={delivery}"), Plain())
    sink.prepare("order", "")
    worker = Worker(sink, "order")
    sent = [b"%d:%05d" % (i % 7, i) for i in range(2_000)]
    worker.run(0, sent[:1_000])
    worker.run(1, sent[1_000:])
    expected = []
    for partition in range(PARTITIONS):
        expected += [(v[:1], v) for v in sent if murmur2(v[:1]) % PARTITIONS == partition]
    assert consume(kafka, topic) == expected


def test_records_without_keys_and_empty_values_arrive(kafka: KafkaBroker, topic: str) -> None:
    """A record without a key may go to any partition; an empty message is not a null."""
    sink = KafkaSink(bind(kafka, topic), Plain())
    task = sink.task(TaskContext(0, 0, 0, "none"), TEXT)
    batch = pa.RecordBatch.from_arrays([pa.array([b"", b"x"], pa.binary())], schema=TEXT.schema)
    task.write(batch, None)
    task.write(batch.slice(1), pa.array([None], pa.binary()))
    task.write(batch.slice(0, 0), None)
    assert task.finish() == b""
    assert sorted(consume(kafka, topic), key=str) == [(None, b""), (None, b"x"), (None, b"x")]


def test_a_replayed_batch_is_skipped(kafka: KafkaBroker, topic: str, workers: list[Worker]) -> None:
    """Whether the same worker or another repeats the batch, its records are there once."""
    workers[0].run(0, [b"a"])
    workers[0].run(0, [b"a"])
    workers[1].run(0, [b"a"])
    workers[1].run(1, [b"b"])
    workers[0].run(1, [b"b"])
    workers[0].run(2, [b"c"])
    assert values(kafka, topic, "read_committed") == [b"a", b"b", b"c"]


def test_partitions_of_a_batch_are_independent(kafka: KafkaBroker, topic: str, workers: list[Worker]) -> None:
    """If a batch failed after the commit of one partition, only the other one is written again."""
    workers[0].run(0, [b"a"], partition=0)
    open_task = workers[0].start(0, [b"b"], partition=1)
    workers[0].send(open_task)
    open_task.abort()
    workers[1].run(0, [b"a"], partition=0)
    workers[1].run(0, [b"b"], partition=1)
    assert values(kafka, topic) == [b"a", b"b"]
    assert values(kafka, topic, "read_uncommitted").count(b"a") == 1


def test_an_aborted_task_does_not_hold_up_consumers(
    kafka: KafkaBroker, topic: str, workers: list[Worker]
) -> None:
    """After a failure in user code the transaction is aborted, and the worker continues with the same producer."""
    workers[0].run(0, [b"a"])
    failed = workers[0].start(1, [b"never"])
    workers[0].send(failed)
    failed.abort()
    assert values(kafka, topic) == [b"a"]
    workers[0].run(1, [b"b"])
    assert values(kafka, topic) == [b"a", b"b"]


def test_a_task_that_is_aborted_leaves_alone_what_another_commits(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time the next interval may fail while the previous one commits, with the same producer."""
    sink = KafkaSink(bind(kafka, topic, "?delivery=exactly-once"), Plain())
    lineage = uuid.uuid4().hex[:8]
    sink.prepare(lineage, "")
    first, second = (sink.task(TaskContext(batch, 0, 0, lineage), TEXT) for batch in (0, 1))
    for task, value in ((first, b"a"), (second, b"b")):
        task.write(pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], schema=TEXT.schema), None)
    commit = TransactionalProducer.commit

    def commit_beside(producer: TransactionalProducer, batch_id: int, note: str) -> None:
        second.abort()
        commit(producer, batch_id, note)

    monkeypatch.setattr(TransactionalProducer, "commit", commit_beside)
    first.finish()
    assert consume(kafka, topic) == [(None, b"a")]


def test_a_task_forgotten_by_its_worker_leaves_nothing(
    kafka: KafkaBroker, topic: str, workers: list[Worker]
) -> None:
    """A transaction left open by an earlier task of the worker is not mixed into the next one."""
    workers[0].send(workers[0].start(0, [b"left"]))
    workers[0].run(0, [b"a"])
    assert values(kafka, topic) == [b"a"]


def test_a_zombie_behind_the_commit_writes_nothing(
    kafka: KafkaBroker, topic: str, workers: list[Worker]
) -> None:
    """An old attempt that resumes after its batch is committed, however late, detects that."""
    for later in range(2):
        zombie = workers[0].send(workers[0].start(2 * later, [b"batch %d" % (2 * later)]))
        workers[1].run(2 * later, [b"batch %d" % (2 * later)])
        if later:
            workers[1].run(3, [b"batch 3"])
        zombie()
        workers[0].run(2 * later, [b"batch %d" % (2 * later)])
    assert values(kafka, topic) == [b"batch 0", b"batch 2", b"batch 3"]


def test_a_zombie_before_the_commit_and_its_successor_write_once(
    kafka: KafkaBroker, topic: str, workers: list[Worker]
) -> None:
    """Of two concurrent attempts the first to commit wins, even if it is the older one."""
    zombie = workers[0].send(workers[0].start(0, [b"a", b"b"]))
    successor = workers[1].send(workers[1].start(0, [b"a", b"b"]))
    zombie()
    successor()
    assert values(kafka, topic) == [b"a", b"b"]
    workers[2].run(1, [b"c"])
    assert values(kafka, topic) == [b"a", b"b", b"c"]


def test_partitions_may_move_between_workers(kafka: KafkaBroker, topic: str, workers: list[Worker]) -> None:
    """Spark may assign a partition to any worker; cached producers that were fenced since are replaced."""
    sent = []
    for batch_id in range(9):
        sent.append(b"%d" % batch_id)
        workers[batch_id % 3 if batch_id < 6 else 0].run(batch_id, [sent[-1]])
    assert values(kafka, topic) == sent


CRASH = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from sink_workers import Plain, Worker
    from penstock.bindings.parse import parse_binding
    from penstock.sinks.kafka_sink import KafkaSink
    sink = KafkaSink(parse_binding("heaters", {uri!r}, "sink"), Plain())
    worker = Worker(sink, {lineage!r})
    for batch_id in range(3):
        worker.run(batch_id, [b"%d-%03d" % (batch_id, i) for i in range(500)])
    task = worker.start(3, [b"3-%03d" % i for i in range(500)])
    go_on = worker.send(task)
    if {commit}:
        go_on()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("commit", [False, True])
def test_a_killed_worker_leaves_each_record_once(kafka: KafkaBroker, topic: str, commit: bool) -> None:
    """Kill -9 just before or after the commit: after the replay the topic is complete, without duplicates."""
    uri = f"kafka://{kafka.bootstrap}/{topic}?delivery=exactly-once"
    fields = {"tests": str(Path(__file__).parent), "uri": uri, "lineage": topic, "commit": commit}
    script = textwrap.dedent(CRASH.format(**fields))
    crashed = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert crashed.returncode == -signal.SIGKILL
    assert len(values(kafka, topic, "read_uncommitted")) == 2000, "everything was sent before the crash"
    worker = Worker(KafkaSink(bind(kafka, topic, "?delivery=exactly-once"), Plain()), topic)
    for batch_id in (3, 4):
        worker.run(batch_id, [b"%d-%03d" % (batch_id, i) for i in range(500)])
    assert values(kafka, topic) == [b"%d-%03d" % (batch_id, i) for batch_id in range(5) for i in range(500)]


def test_nothing_is_sent_while_a_task_still_emits(
    kafka: KafkaBroker, topic: str, workers: list[Worker]
) -> None:
    """This holds however much it has emitted: the broker would expire a transaction that stays open meanwhile."""
    task = workers[0].start(0, [b"%02d" % i + bytes(800_000) for i in range(24)])
    assert not len(values(kafka, topic, "read_uncommitted"))
    workers[0].finish(task)
    assert [value[:2] for value in values(kafka, topic)] == [b"%02d" % i for i in range(24)]


def test_a_task_may_emit_for_longer_than_a_transaction_may_last(kafka: KafkaBroker, topic: str) -> None:
    """Emitting takes several times `transaction.timeout.ms`; the batch is committed, with each record once.

    The broker looks once a second for expired transactions.
    """
    sink = KafkaSink(bind(kafka, topic, "?delivery=exactly-once&transaction.timeout.ms=1000"), Plain())
    worker = Worker(sink, topic)
    task = worker.start(0, [b"first"])
    emitted = [b"%02d" % number for number in range(20)]
    for value in emitted:
        time.sleep(0.2)
        worker.write(task, [value])
    worker.finish(task)
    worker.run(0, [b"first"])
    worker.run(1, [b"next"])
    assert values(kafka, topic) == [*emitted, b"first", b"next"]


def test_an_empty_partition_opens_no_transaction(kafka: KafkaBroker, topic: str) -> None:
    """A task without records does not even open a connection."""
    sink = KafkaSink(bind(kafka, topic, "?delivery=exactly-once"), Plain())
    worker = Worker(sink, "empty")
    worker.run(0, [])
    assert not worker._kept


def test_a_new_lineage_begins_at_its_own_batch_0(kafka: KafkaBroker, topic: str) -> None:
    """Batches of another checkpoint have no effect on this one's."""
    sink = KafkaSink(bind(kafka, topic, "?delivery=exactly-once"), Plain())
    for lineage in ("old", "new"):
        Worker(sink, f"{topic}-{lineage}").run(0, [lineage.encode()])
    assert values(kafka, topic) == [b"new", b"old"]


def test_what_cannot_be_reached_is_said_before_the_start(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing topic, a missing broker and a wrong setting each give one clear message, for sources and sinks."""
    missing = f"kafka://{kafka.bootstrap}/no-such-topic"
    with pytest.raises(BindingError, match=r"'heaters'.*'no-such-topic' does not exist.*create_topic=true"):
        KafkaSink(parse_kafka("heaters", missing, "sink"), Plain()).prepare("x", "")
    with pytest.raises(BindingError, match=r"'readings'.*'no-such-topic' does not exist"):
        preflight(parse_kafka("readings", missing, "data"))
    # An unreachable broker is waited for as long as an unresponsive one.
    monkeypatch.setattr(kafka_source, "check_topic", functools.partial(check_topic, timeout_s=2.0))
    with pytest.raises(
        ExternalSystemError, match=r"'readings': no Kafka broker answers at 127\.0\.0\.1:1 .*refused"
    ):
        preflight(parse_kafka("readings", "kafka://127.0.0.1:1/t", "data"))
    with pytest.raises(BindingError, match=r"client rejects a setting.*no\.such\.setting"):
        KafkaSink(
            parse_kafka("heaters", f"{missing}?create_topic=true&no.such.setting=1", "sink"), Plain()
        ).prepare("x", "")


def parse_kafka(stream: str, uri: str, role: Any) -> KafkaBinding:
    binding = parse_binding(stream, uri, role)
    assert isinstance(binding, KafkaBinding)
    return binding


def test_a_topic_is_created_when_the_binding_says_so(kafka: KafkaBroker) -> None:
    """`create_topic=true` works for sources and sinks, and accepts an existing topic."""
    for role in ("data", "control", "sink"):
        uri = f"kafka://{kafka.bootstrap}/made-{role}?create_topic=true"
        for _ in range(2):
            if role == "sink":
                KafkaSink(parse_kafka("heaters", uri, role), Plain()).prepare("x", "")
            else:
                preflight(parse_kafka("readings", uri, role))
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        assert producer.list_topics(f"made-{role}", timeout=10).topics[f"made-{role}"].error is None


def limited(kafka: KafkaBroker, max_bytes: int) -> str:
    """Return a topic with a maximum message size in bytes."""
    name = f"limited-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS, {"max.message.bytes": str(max_bytes)})
    return name


def raise_limit(kafka: KafkaBroker, topic: str, max_bytes: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([asked])[asked].result(20)


def prepared(kafka: KafkaBroker, topic: str, delivery: str, more: str = "") -> KafkaSink:
    sink = KafkaSink(bind(kafka, topic, f"?delivery={delivery}&compression.type=none{more}"), Plain())
    sink.prepare(topic, "")
    return sink


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("max_bytes", [300, 9_000, 3_000_000])
def test_the_largest_message_is_written_and_one_byte_more_is_rejected(
    kafka: KafkaBroker, delivery: str, max_bytes: int
) -> None:
    """The limit is exact, as the broker counts bytes, so the broker never refuses a message."""
    topic = limited(kafka, max_bytes)
    sink = prepared(kafka, topic, delivery)
    worker = Worker(sink, topic)
    task: Any = worker.start(0, [])
    largest = max(n for n in range(max_bytes - 100, max_bytes) if not oversized_by(n, max_bytes))
    worker.write(task, [b"k" * largest])
    assert task.rejections() == []
    worker.write(task, [b"k" * (largest + 1)])
    (found,) = task.rejections()
    assert found.raw == b"k" * (largest + 1)
    assert found.max_bytes == max_bytes
    assert f"of {max_bytes + 1} bytes" in found.reason
    assert f"max.message.bytes is {max_bytes}; raise it" in found.reason
    worker.write(task, [b"small%03d" % number for number in range(300)])
    worker.finish(task)
    assert [len(value) for value in values(kafka, topic)] == [largest, *[8] * 300]


def oversized_by(length: int, max_bytes: int) -> bool:
    return bool(oversized(pa.array([bytes(length)]), pa.array([b"k"]), max_bytes))


def test_the_producer_s_own_limit_counts_when_the_uri_has_one(kafka: KafkaBroker, topic: str) -> None:
    """The reason names the setting to raise."""
    worker = Worker(prepared(kafka, topic, "at-least-once", "&message.max.bytes=5000"), topic)
    task: Any = worker.start(0, [bytes(5000)])
    (found,) = task.rejections()
    assert "the sink's message.max.bytes is 5000; raise it in the URI" in found.reason


def test_a_replay_leaves_out_what_the_committed_batch_left_out(kafka: KafkaBroker) -> None:
    """Even if the topic accepts the record by then, it stays a dead letter and is not also a message."""
    topic = limited(kafka, 2_000)
    for max_bytes, batch_id, rejected in ((2_000, 0, 1), (9_000, 0, 1), (9_000, 1, 0)):
        raise_limit(kafka, topic, max_bytes)
        worker = Worker(prepared(kafka, topic, "exactly-once"), topic)
        task: Any = worker.start(batch_id, [bytes(5_000)])
        found = task.rejections()
        assert [(r.max_bytes, len(r.raw)) for r in found] == [(2_000, 5_000)] * rejected
        worker.finish(task)
    assert len(values(kafka, topic)) == 1


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_record_without_a_key_is_rejected_for_a_compacted_topic(kafka: KafkaBroker, delivery: str) -> None:
    """The broker would refuse everything sent with it, every time."""
    topic = f"compacted-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS, {"cleanup.policy": "compact"})
    task: Any = prepared(kafka, topic, delivery).task(TaskContext(0, 0, 0, topic), TEXT)
    task.write(
        pa.record_batch([pa.array([b"a", b"b", b"c"])], schema=TEXT.schema), pa.array([b"k", None, b"l"])
    )
    (found,) = task.rejections()
    assert (found.row, found.raw) == (1, b"b")
    assert "is compacted (cleanup.policy)" in found.reason
    task.finish()
    assert sorted(values(kafka, topic)) == [b"a", b"c"]
