"""Rejections: a record that a sink rejects is a dead letter with its origin, and others are written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.commands.job_receipts import ReceiptWriter
from penstock.control.encoded_receipts import BatchReceipts, EncodedReceipts
from penstock.control.receipts import Receipt, RecordPosition
from penstock.errors import ExternalSystemError, StrictModeError
from penstock.operators.record_blocks import DeadLetter
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.records.wire_formats import format_of
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE, DEAD_LETTERS, PackedRow, place_text, to_bytes
from penstock.runtime.plan import JobPlan
from penstock.runtime.writer import Writer
from penstock.sinks.base import RejectingTask, Rejection, TaskContext
from penstock.sinks.message_sizes import MessageLimit, oversized

KIND = record_type("text STRING")


class LimitedTask(RejectingTask):
    def __init__(self, sink: LimitedSink, kind: RecordType) -> None:
        super().__init__()
        self.sink = sink
        self.format = format_of("json", kind)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        values = self.format.encode(batch)
        limit = MessageLimit(self.sink.max_bytes)
        sizes = oversized(values, keys, limit.max_bytes)
        for row, value in enumerate(values.to_pylist()):
            if row in sizes:
                reason = limit.reason(sizes[row], "t")
                self._rejections.append(Rejection(row, reason, value, limit.max_bytes))
            else:
                self.sink.written.append(value)

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        self.sink.aborted = True


class LimitedSink:
    """A sink that accepts records up to a size in bytes."""

    exactly_once = True

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.written: list[bytes] = []
        self.aborted = False

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Do nothing."""

    def task(self, context: TaskContext, record_type: RecordType) -> LimitedTask:
        return LimitedTask(self, record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing."""


def write(texts: list[str], letters_most: int = 1 << 20, *, strict: bool = False) -> tuple[Any, ...]:
    """Write some records, of which one block lacks offset 6; return the content of the sinks, and the reports."""
    job = ps.Job("job", key_groups=4)
    job.data_stream("lines", schema=KIND).sink_to("out")
    plan = JobPlan(job.graph, 4, frozenset(), frozenset({"out"}), strict=strict)
    (node,) = job.graph.sinks()
    out, letters = LimitedSink(500), LimitedSink(letters_most)
    sinks: Any = {
        "out": (out, KIND, plan.sink_schema(node)),
        DEAD_LETTERS: (letters, DEAD_LETTER_TYPE, DEAD_LETTER_TYPE.schema),
    }
    offsets = [5, *range(7, 6 + len(texts))]
    columns = [pa.array(texts), pa.nulls(len(texts), pa.binary()), pa.array(offsets)]
    batch = pa.RecordBatch.from_arrays(columns, schema=plan.sink_schema(node))
    row = PackedRow("sink/out", 0, 0, place_text("", "lines", "p"), 5, to_bytes(batch))
    (reports,) = Writer(plan, sinks, "lineage").batches([row], 0, 0, 0)
    told = sorted(zip(*(column.to_pylist() for column in reports.columns), strict=True))
    return out.written, [msgspec.json.decode(raw, type=DeadLetter) for raw in letters.written], told


def test_a_rejected_record_is_a_dead_letter_with_its_own_place() -> None:
    """Counts include both kinds, and the dead letter has the bytes to be written."""
    long = "x" * 600
    written, letters, told = write(["a", "b", long, "c"])
    assert written == [b'{"text":"%b"}' % text for text in (b"a", b"b", b"c")]
    (letter,) = letters
    assert (letter.stream, letter.step, letter.partition, letter.offset) == ("lines", "sink/out", "p", 8)
    assert letter.raw == b'{"text":"%b"}' % long.encode()
    assert letter.reason.startswith("The message of 681 bytes, key and Kafka's own included, is too large")
    assert [(kind, name, total) for kind, name, _, total, _ in told] == [
        ("out", "dead-letters", 1),
        ("out", "out", 3),
    ]


def test_strict_ends_the_job_at_a_rejected_record() -> None:
    """It ends before the batch is committed."""
    with pytest.raises(
        StrictModeError, match=r"record 7 of 'p' in stream 'lines'.*too large for the topic 't'"
    ):
        write(["a", "x" * 600], strict=True)


def test_a_dead_letter_that_is_too_large_itself_is_cut() -> None:
    """So a large record does not end the job when dead letters go to a broker with the same limit."""
    _, (letter,), told = write(["é" * 5000], letters_most=2000)
    assert letter.raw == ('{"text":"' + "é" * 5000).encode()[:500]
    assert letter.reason.endswith("(cut: the record has 10011 bytes, and a dead letter here at most 2000)")
    assert told[0][:4] == ("out", "dead-letters", 0, 1)


def test_a_place_that_does_not_even_take_a_cut_dead_letter_is_an_error() -> None:
    """The error says what to change."""
    with pytest.raises(
        ExternalSystemError, match=r"although it was cut: .*Bind dead-letters to a place that takes more"
    ):
        write(["x" * 600], letters_most=250)


def test_a_receipt_that_is_too_large_for_its_sink_goes_without_its_details(tmp_path: Path) -> None:
    """The checkpoint has the full receipt."""
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    receipts = [
        Receipt(name, "APPLIED", "set", "job", None, "me", 0, at, details=details)
        for name, details in (("small", "{}"), ("large", '"%s"' % ("x" * 900)))
    ]
    lines = b"".join(msgspec.json.encode(receipt) + b"\n" for receipt in receipts)
    sink: Any = LimitedSink(500)
    writer = ReceiptWriter(tmp_path, "lineage", sink)
    writer.prepare()
    writer.write(
        0,
        BatchReceipts.of(
            [], [EncodedReceipts(RecordPosition("commands", "0", 0), "small", "APPLIED", lines)]
        ),
    )
    small, large = (msgspec.json.decode(raw) for raw in sink.written)
    assert (small["id"], small["details"]) == ("small", "{}")
    assert (large["id"], large["details"]) == ("large", "")
    assert large["reason"] == "(cut: the whole receipt is in the checkpoint)"
    assert (tmp_path / "receipts" / "0000000001.jsonl").read_bytes() == lines
