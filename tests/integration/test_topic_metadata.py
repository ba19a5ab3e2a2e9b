"""The key, timestamp, position and headers of messages fill fields, on a real broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from integration_support import RunJob, read_lines

import penstock as ps
from penstock.errors import BindingError
from penstock.machine.kafka_broker import KafkaBroker

# Brokers delete messages that are older than a week.
AT_MS = time.time_ns() // 1_000_000_000 * 1000 + 123


@dataclass
class Reading:
    """A reading, of which the message's body holds only the value."""

    device: str
    value: int
    sent_ms: int
    source_partition: int
    position: int
    trace: str | None


def traced_job() -> ps.Job:
    job = ps.Job("traced", key_groups=2)
    readings = job.data_stream(
        "readings",
        schema=Reading,
        metadata={
            "device": ps.kafka_key(),
            "sent_ms": ps.kafka_timestamp(),
            "source_partition": ps.kafka_partition(),
            "position": ps.kafka_offset(),
            "trace": ps.kafka_header("trace-id"),
        },
        event_time="sent_ms",
        watermarks=ps.Watermarks.bounded("1s"),
    )
    readings.key_by("device").count("counted").sink_to("counts")
    readings.sink_to("found")
    return job


def write(kafka: KafkaBroker, topic: str, values: Sequence[int]) -> list[Reading]:
    """Write a reading for each value, alternating between two partitions; every third has a header."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    found = []
    for value in values:
        trace = f"t{value}" if value % 3 == 0 else None
        headers = [("trace-id", b"first"), ("trace-id", trace.encode())] if trace else [("other", b"\xff")]
        reading = Reading(f"d{value % 2}", value, AT_MS + value, value % 2, value // 2, trace)
        body = json.dumps({"value": value, "device": "ignored"}).encode()
        producer.produce(
            topic, body, reading.device, partition=value % 2, timestamp=reading.sent_ms, headers=headers
        )
        found.append(reading)
    assert producer.flush(30) == 0
    return found


def test_messages_fill_fields_in_both_modes(run_job: RunJob, kafka: KafkaBroker, tmp_path: Path) -> None:
    """Micro-batches and real time run one after the other on the same checkpoint."""
    topic = f"traced-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    bindings = {
        "readings": f"kafka://{kafka.bootstrap}/{topic}?start=earliest",
        "counts": "discard:",
        "found": f"jsonl:{tmp_path}/found",
    }
    wanted = write(kafka, topic, range(20))
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b'{"value": 1}', b"\xff", partition=0, timestamp=AT_MS)
    assert producer.flush(30) == 0
    run_job(traced_job(), bindings)
    later = write(kafka, topic, range(20, 30))
    for reading in later:
        # The message that did not fit comes before them.
        reading.position += reading.source_partition == 0
    run_job(traced_job(), bindings, checkpoint_interval_ms=1000)
    found = sorted(read_lines(tmp_path / "found"), key=lambda one: one["value"])
    assert found == [asdict(reading) for reading in [*wanted, *later]]
    (letter,) = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert letter["reason"] == r"field 'device': the key b'\xff' of the message is not UTF-8 text"
    assert (letter["partition"], letter["offset"]) == ("00000", 10)


@pytest.mark.parametrize("uri", ["socket://127.0.0.1:9", "amqp://u:p@127.0.0.1:9/v/q", "text:in"])
def test_a_source_without_messages_is_refused(run_job: RunJob, uri: str) -> None:
    """The refusal comes before any connection, and says what to do."""
    with pytest.raises(
        BindingError, match=r"takes device, sent_ms, .* from Kafka messages.*Bind it to kafka://"
    ):
        run_job(traced_job(), {"readings": uri, "counts": "discard:", "found": "discard:"})
