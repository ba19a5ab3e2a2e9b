"""Outgoing messages: sent in order, and repeatable, whether they are buffered in memory or on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import ExternalSystemError
from penstock.sinks import kafka_sink
from penstock.sinks.base import TaskContext
from penstock.sinks.kafka_producers import TransactionalProducer, TransactionLostError
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_parts import Messages
from penstock.sinks.message_sizes import MessageLimit
from penstock.sinks.outgoing_messages import OutgoingMessages

Message = tuple[bytes, bytes | None]
BLOCKS = st.lists(st.lists(st.tuples(st.binary(), st.none() | st.binary()), min_size=1))


def messages(blocks: list[list[Message]], memory_bytes: int) -> OutgoingMessages:
    made = OutgoingMessages("heaters", memory_bytes)
    for block in blocks:
        # A slice, whose buffers hold more than its own messages.
        values = pa.array([b"before", *(value for value, _ in block)], pa.binary()).slice(1)
        keys = pa.array([key for _, key in block], pa.binary())
        made.append(Messages(values, None if keys.null_count == len(keys) else keys))
    return made


def read(made: OutgoingMessages) -> list[Message]:
    return [
        message
        for block in made.blocks()
        if block.keys is not None
        for message in zip(block.values.to_pylist(), block.keys.to_pylist(), strict=True)
    ]


@given(blocks=BLOCKS, memory_bytes=st.sampled_from([0, 1500, 1 << 20]))
def test_messages_come_back_in_order_and_more_than_once(
    blocks: list[list[Message]], memory_bytes: int
) -> None:
    """Messages may be in memory, on disk, or both; a second transaction sends the same as the first."""
    made = messages(blocks, memory_bytes)
    assert bool(made) == bool(blocks)
    expected = [message for block in blocks for message in block]
    for _ in range(2):
        assert read(made) == expected
    made.close()
    assert read(made) == []


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_headers_and_hashes_wait_too(memory_bytes: int) -> None:
    """Each message keeps its headers and hash; without hashes none are reported."""
    made = OutgoingMessages("heaters", memory_bytes)
    values, headers = pa.array([b"a", b"b"], pa.binary()), {"h": pa.array([b"x", None], pa.binary())}
    made.append(Messages(values, None, headers, pa.array([7, None], pa.int32())))
    made.append(Messages(values, None, headers))
    first, second = made.blocks()
    assert first.hashes is not None
    assert first.hashes.to_pylist() == [7, None]
    assert second.hashes is None
    assert [block.headers["h"].to_pylist() for block in (first, second)] == [[b"x", None]] * 2


def test_what_exceeds_the_bound_waits_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker leaves no file, and Arrow's memory stays within the bound."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, before = OutgoingMessages("heaters", 1 << 20), pa.total_allocated_bytes()
    for number in range(40):
        made.append(Messages(pa.array([b"%02d" % number + bytes(1 << 18)], pa.binary())))
    assert made.nbytes > 10 << 20
    assert pa.total_allocated_bytes() - before < 2 << 20
    assert not list(tmp_path.iterdir())
    assert [value[:2] for value, _ in read(made)] == [b"%02d" % number for number in range(40)]


def test_a_disk_that_takes_nothing_is_said_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the sink, the folder, the cause and the remedy."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ExternalSystemError, match=r"'heaters'.*/gone until it is sent.*No such file.*TMPDIR"):
        messages([[(b"a", None)]], 0)
    full = os.open("/dev/full", os.O_RDWR)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: os.fdopen(full, "w+b"))
    with pytest.raises(ExternalSystemError, match="No space left on device"):
        messages([[(bytes(1 << 20), None)]], 0)


class Slow:
    """A producer whose broker has expired the transaction before the commit."""

    done = -1
    note = ""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def abort(self) -> None:
        """Do nothing: no transaction is open."""

    def send(self, messages: Messages) -> None:
        self.now_s += self.takes_s

    def commit(self, batch_id: int, note: str) -> None:
        raise TransactionLostError("Broker: Producer attempted to produce with an old epoch")


@pytest.mark.parametrize(
    ("takes_s", "said"),
    [
        (
            7.5,
            r"3 in one task, 4\.0 MB, could not be sent to b:1 within 8 s .*old epoch.*open for 7 s\. Raise trans",
        ),
        (1.0, "was lost 3 times"),
    ],
)
def test_output_that_takes_longer_to_send_than_a_transaction_may_last_is_said(
    takes_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the size, the duration and remedies; a transaction that is lost sooner is retried."""
    producer: Any = Slow(takes_s)
    monkeypatch.setattr(TransactionalProducer, "of", lambda *_: producer)
    monkeypatch.setattr(kafka_sink, "time", producer)
    uri = "kafka://b:1/t?delivery=exactly-once&transaction.timeout.ms=7000"
    binding = parse_binding("heaters", uri, "sink")
    assert isinstance(binding, KafkaBinding)
    encoder: Any = type("Plain", (), {"encode": lambda _, batch: batch.column(0)})()
    sink = KafkaSink(binding, encoder)
    sink._limit = MessageLimit(None, 9_000_000)
    task = sink.task(TaskContext(3, 0, 0, "x"), None)  # type: ignore[arg-type]
    task.write(pa.RecordBatch.from_pydict({"value": pa.array([bytes(4 << 20)], pa.binary())}), None)
    with pytest.raises(ExternalSystemError, match=said):
        task.finish()
