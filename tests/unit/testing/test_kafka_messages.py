"""Streams with metadata in a whole job: from Kafka messages, and from records that have all fields."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.records.message_metadata import body_type
from penstock.records.schemas import record_type
from penstock.testing import JobHarness, KafkaMessage

AT = dt.datetime(2026, 11, 24, 2, 0, tzinfo=dt.UTC)


@dataclasses.dataclass
class Reading:
    """A reading, of which the body of a message has only the value."""

    device: str
    value: float
    sent: dt.datetime
    source_partition: int
    position: int
    trace: str | None = None

    def __post_init__(self) -> None:
        if self.device == "forbidden":
            raise ValueError("this device may not send")
        self.value = round(self.value, 1)


@dataclasses.dataclass
class Limit:
    """A limit of a device."""

    device: str
    least: float


class Above(ps.ConnectedProcessFunction):
    """Emits the readings of at least the limit."""

    least = ps.ValueState(float)

    def process_control(self, control: Limit, ctx: ps.Context) -> None:
        """Set the limit."""
        self.least.set(control.least)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Reading]:
        """Emit the reading."""
        if record.value >= (self.least.get() or 0):
            yield record


METADATA = {
    "device": ps.kafka_key(),
    "sent": ps.kafka_timestamp(),
    "source_partition": ps.kafka_partition(),
    "position": ps.kafka_offset(),
    "trace": ps.kafka_header("trace-id"),
}


def job() -> ps.Job:
    described = ps.Job("traced", key_groups=4)
    readings = described.data_stream(
        "readings",
        schema=Reading,
        metadata=METADATA,
        event_time="sent",
        watermarks=ps.Watermarks.bounded("1s"),
    )
    limits = described.control_stream("limits", schema=Limit, metadata={"device": ps.kafka_key()})
    step = readings.key_by("device").connect(limits.key_by("device"))
    step.process("above", Above()).sink_to("found")
    return described


def message(value: Any, **around: Any) -> KafkaMessage:
    return KafkaMessage({"value": value}, **{"key": "a", "timestamp": AT, **around})


def test_messages_fill_the_fields() -> None:
    """Of data and control streams, by partition and offset, and a crash gives the same."""
    run = JobHarness(job(), parallelism=2, partitions={"readings": 2})
    run.send("limits", KafkaMessage({"least": 5}, key="b"))
    run.send("readings", message(1.26, headers={"trace-id": "t1", "other": "x"}), message(3, key=7))
    run.send("readings", message(9.0, key="b"), message(4.0, key="b"), partition=1)
    assert sorted(run.run_batch().output("found"), key=lambda one: one.device) == [
        Reading("7", 3.0, AT, 0, 1),
        Reading("a", 1.3, AT, 0, 0, "t1"),
        Reading("b", 9.0, AT, 1, 0),
    ]
    run.crash()
    run.send("readings", message(2.0), partition=1)
    assert [one.position for one in run.run_batch().output("found")] == [2]
    assert run.dead_letters() == []


def test_messages_that_do_not_fit_are_dead_letters() -> None:
    """With the body of the message, and next to bodies that do not decode."""
    run = JobHarness(job())
    run.send(
        "readings",
        message(1.0, key=None),
        message(2.0, key=b"\xff"),
        KafkaMessage(b"no JSON", key="a", timestamp=AT),
        message(3.0, timestamp=None),
        message(4.0, key="forbidden"),
        message(5.0),
        message("six"),
    )
    outcome = run.run_batch()
    assert [one.value for one in outcome.output("found")] == [5.0]
    letters = {letter.offset: (letter.reason, letter.raw) for letter in outcome.dead_letters}
    assert sorted(letters) == [0, 1, 2, 3, 4, 6]
    assert letters[0] == ("field 'device' is not optional, and the message has no key", b'{"value":1.0}')
    assert "is not UTF-8 text" in letters[1][0]
    assert letters[3][0] == "field 'sent' is not optional, and the message has no timestamp"
    assert "this device may not send" in letters[4][0]
    run.crash()


def test_the_event_time_is_that_of_the_message() -> None:
    """Its watermark, too."""
    run = JobHarness(job(), partitions={"readings": 1})
    run.send("readings", message(1.0, timestamp=AT), message(1.0, timestamp=None))
    outcome = run.run_batch()
    (time,) = outcome.times("above")
    assert time.watermark_ms == int(AT.timestamp() * 1000) - 1001


def test_records_with_all_fields_need_no_message() -> None:
    """Those of a test, of Python or of a folder have them like all others."""
    whole = Reading("a", 1.0, AT, 3, 17, "t")
    run = JobHarness(job())
    run.send("readings", whole, {**dataclasses.asdict(whole), "sent": AT.isoformat()})
    assert run.run_batch().output("found") == [whole, whole]


def test_a_body_is_no_object() -> None:
    """An object has all fields, so it would not be clear which ones count."""
    run = JobHarness(job())
    with pytest.raises(SchemaError, match=r"The body of KafkaMessage\(.* is an object; send a dict"):
        run.send("readings", KafkaMessage(Reading("a", 1.0, AT, 0, 0)))


def test_a_stream_without_metadata_takes_messages() -> None:
    """A body of one field of bytes is taken as it is."""
    described = ps.Job("raw")
    described.data_stream("in", schema="body BINARY").sink_to("out")
    named = described.data_stream("named", schema="body STRING, key STRING", metadata={"key": ps.kafka_key()})
    named.sink_to("both")
    run = JobHarness(described)
    run.send("in", KafkaMessage(b"{x", key="k"))
    run.send("named", KafkaMessage("{y", key="k"), KafkaMessage(b"z"))
    run.run_batch()
    assert [one.body for one in run.output("out")] == [b"{x"]
    assert [(one.body, one.key) for one in run.output("both")] == [("{y", "k"), ("z", None)]


def test_types_of_bodies_travel() -> None:
    """They are pickled to workers."""
    kind = record_type(Reading)
    bodies = body_type(kind, tuple(METADATA.items()))
    again = pickle.loads(pickle.dumps(bodies))
    assert again is bodies
    assert bodies.field_names == ("value",)
