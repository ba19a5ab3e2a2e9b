"""Packed rows: the rows that penstock sends through Spark. One row holds a whole block of records.

A row has a destination, a key group, a position in the order, and a body of bytes: an Arrow record batch without its
schema, which both ends know from the plan. `slot` is the Spark key that takes it to the task that serves its key group.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.control.encoded_receipts import Applied, ReceiptColumns
from penstock.control.receipts import Report, StepTime
from penstock.metrics.source_times import TimesRead
from penstock.metrics.task_reports import TIMES_READ, encode_report
from penstock.operators.record_blocks import DeadLetter
from penstock.operators.watermarks import WatermarkUpdate
from penstock.records.schemas import record_type
from penstock.streams.own_streams import DEAD_LETTERS

__all__ = [
    "CHECKPOINT_COMMANDS",
    "COUNTS",
    "DEAD_LETTERS",
    "DEAD_LETTER_TYPE",
    "FETCHED",
    "PACKED_DDL",
    "PACKED_SCHEMA",
    "RECEIPT_COLUMNS",
    "REPORTS",
    "SLOT_COMMANDS",
    "TIME",
    "WAKE",
    "WATERMARKS",
    "PackedRow",
    "counts_row",
    "decode_receipt_columns",
    "encode_body",
    "encode_receipt_columns",
    "from_bytes",
    "packed_batches",
    "place_of",
    "place_text",
    "record_batch_of",
    "reports_of",
    "reports_row",
    "split_by_key_group",
    "time_of",
    "time_row",
    "times_row",
    "to_bytes",
    "watermark_rows",
    "watermark_updates_of",
]

PACKED_DDL: Final = """
    slot INT, destination STRING, key_group INT, input INT, partition STRING, first_offset BIGINT, body BINARY
"""
PACKED_SCHEMA: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("destination", pa.string()),
        ("key_group", pa.int32()),
        ("input", pa.int32()),
        ("partition", pa.string()),
        ("first_offset", pa.int64()),
        ("body", pa.binary()),
    ]
)
COUNTS: Final = "counts"
SLOT_COMMANDS: Final = "slot-commands"
CHECKPOINT_COMMANDS: Final = "checkpoint-commands"
"""The same for commands that a slot in real time executes at the end of the interval."""
REPORTS: Final = "reports"
RECEIPT_COLUMNS: Final = "receipts"
FETCHED: Final = "fetched"
"""The kind of a count of what a task has kept for commands, by the name of each."""
WATERMARKS: Final = "watermarks"
TIME: Final = "time"
WAKE: Final = "wake"
_updates: Final = msgspec.msgpack.Decoder(WatermarkUpdate)
_times: Final = msgspec.msgpack.Decoder(StepTime)
_reports: Final = msgspec.msgpack.Decoder(tuple[dt.datetime, list[Report], list[Applied]])
_receipt_columns: Final = msgspec.msgpack.Decoder(list[ReceiptColumns])
DEAD_LETTER_TYPE: Final = record_type(DeadLetter)

# The approximate size of the Arrow batches for Spark, which holds a few of them in memory for each task.
_BATCH_BYTES: Final = 8 << 20


class PackedRow(NamedTuple):
    """One block, as a row of PACKED_SCHEMA. The slot follows from the key group.

    The body of a row for a sink, or of the output of a step, may be the record batch itself until the row leaves the
    process.
    """

    destination: str
    key_group: int
    input: int
    partition: str
    first_offset: int
    body: Any


def place_text(branch: str, stream: str, partition: str) -> str:
    """Encode the stream and partition that the records of a row come from, and the branch of a union, if any.

    Rows of one branch sort together, and branches sort in the order in which the union names its streams.
    """
    return f"{branch}/{quote(stream, safe='')}/{partition}"


def place_of(text: str) -> tuple[str, str, str]:
    """Decode a text of `place_text` into branch, stream and partition."""
    branch, stream, partition = text.split("/", 2)
    return branch, unquote(stream), partition


def to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Serialize a record batch without its schema."""
    return batch.serialize()


def from_bytes(body: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of a body from `to_bytes`."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)


def record_batch_of(row: PackedRow, schema: pa.Schema) -> pa.RecordBatch:
    """Return the records of a row with the given schema, whether or not the row has left the process."""
    return row.body if isinstance(row.body, pa.RecordBatch) else from_bytes(row.body, schema)


def encode_body(row: PackedRow) -> PackedRow:
    """Return the row with its body as bytes, so that it can leave the process."""
    return row._replace(body=to_bytes(row.body)) if isinstance(row.body, pa.RecordBatch) else row


def counts_row(kind: str, name: str, count: int, key_group: int = 0, body: bytes = b"") -> PackedRow:
    """Return a row that reports a count, such as the records in of a stream or the keys of a step in a key group."""
    report = msgspec.msgpack.encode((kind, name, key_group, count, body))
    return PackedRow(COUNTS, key_group, 0, name, 0, report)


def times_row(stream: str, read: TimesRead | None) -> Iterator[PackedRow]:
    """Yield a row with the times of the records that a task has read from a stream, if it knows any."""
    if read is not None:
        yield counts_row(TIMES_READ, stream, sum(read.times.counts), body=encode_report(read))


def time_row(step: str, key_group: int, time: StepTime) -> PackedRow:
    """Return a row that reports the event time of a slot of a step, and what holds it back."""
    return counts_row(TIME, step, 0, key_group, msgspec.msgpack.encode(time))


def time_of(body: bytes) -> StepTime:
    """Decode the body of a row from `time_row`."""
    return _times.decode(body)


def reports_row(
    step: str, key_group: int, at: dt.datetime, reports: Sequence[Report], applied: Sequence[Applied] = ()
) -> PackedRow:
    """Return a row that reports what a slot of a step did with commands in the micro-batch of that time."""
    return PackedRow(REPORTS, key_group, 0, step, 0, msgspec.msgpack.encode((at, reports, applied)))


def reports_of(body: bytes) -> tuple[dt.datetime, list[Report], list[Applied]]:
    """Decode the body of a row from `reports_row`."""
    return _reports.decode(body)


def encode_receipt_columns(columns: Sequence[ReceiptColumns]) -> bytes:
    """Encode receipts as the body of a report."""
    return msgspec.msgpack.encode(columns)


def decode_receipt_columns(body: bytes) -> list[ReceiptColumns]:
    """Decode the body of a report of receipts."""
    return _receipt_columns.decode(body)


def watermark_rows(update: WatermarkUpdate, first_key_groups: Iterable[int]) -> Iterator[PackedRow]:
    """Yield a row with a watermark update for every slot. Slots are given by their first key groups."""
    body = msgspec.msgpack.encode(update)
    for group in first_key_groups:
        yield PackedRow(WATERMARKS, group, 0, update.origin, 0, body)


def watermark_updates_of(rows: Iterable[PackedRow]) -> list[WatermarkUpdate]:
    """Decode the watermark updates of rows from `watermark_rows`."""
    return [_updates.decode(row.body) for row in rows]


def packed_batches(rows: Iterable[PackedRow], slots: npt.NDArray[np.int32]) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches for Spark. `slots` has the slot of each key group."""
    waiting: list[PackedRow] = []
    size = 0
    for row in rows:
        encoded = encode_body(row)
        waiting.append(encoded)
        size += len(encoded.body)
        if size >= _BATCH_BYTES:
            yield _as_batch(waiting, slots)
            waiting, size = [], 0
    if waiting:
        yield _as_batch(waiting, slots)


def _as_batch(rows: list[PackedRow], slots: npt.NDArray[np.int32]) -> pa.RecordBatch:
    *columns, bodies = zip(*rows, strict=True)
    fields = list(PACKED_SCHEMA)[1:]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=False)]
    slot = pa.array(slots[arrays[1].to_numpy()])
    return pa.RecordBatch.from_arrays([slot, *arrays, _build_binary(bodies)], schema=PACKED_SCHEMA)


def _build_binary(bodies: Sequence[Any]) -> pa.Array:
    """Build a binary column of buffers, with one copy of each."""
    offsets = np.zeros(len(bodies) + 1, np.int32)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(bodies), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(bodies))]
    )


def split_by_key_group(
    batch: pa.RecordBatch,
    groups: npt.NDArray[np.uint16],
    count: int,
    travelling: npt.NDArray[np.uint16] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of each key group that has any, in their order within it.

    With `travelling`, yield those of all key groups that travel under one, ordered by key group: the state of the keys
    of one fits into a processor's cache.
    """
    if len(groups) == 1:
        yield int(groups[0] if travelling is None else travelling[groups[0]]), batch
        return
    # NumPy sorts 16-bit integers by radix, so this is linear.
    order = np.argsort(groups, kind="stable")
    # A slot has successive key groups, so the order is that of the slots, too.
    sizes = np.bincount(groups if travelling is None else travelling[groups], minlength=count)
    ends = np.cumsum(sizes)
    ordered = batch.take(pa.array(order))
    for group in np.flatnonzero(sizes):
        yield int(group), ordered.slice(ends[group] - sizes[group], sizes[group])
