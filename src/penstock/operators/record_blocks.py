"""Blocks: sequences of records from one origin, in the form in which operators exchange them.

A block is an Arrow record batch with the columns of the records. Additional columns, whose names start with two
underscores, hold each record's offset in its source, its original bytes (for dead letters), its key, and its event
time if no field holds it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.event_times import EVENT_TIME
from penstock.records.shown_values import show_values
from penstock.records.types import BadRecord, RecordType

__all__ = [
    "KEY",
    "MESSAGE_KEY",
    "OFFSET",
    "ORIGIN",
    "RAW",
    "Block",
    "DeadLetter",
    "Records",
    "block_schema",
    "join_blocks",
]

OFFSET: Final = "__offset"
ORIGIN: Final = "__origin"
RAW: Final = "__raw"
KEY: Final = "__key"
MESSAGE_KEY: Final = "__message_key"


@dataclass(frozen=True)
class Records:
    """Records from one origin, between stateless operators.

    `times` are their event times, if no field of the records holds them. `origins` are names that stay the same when a
    step emits the records again, if a sink uses them.
    """

    batch: pa.RecordBatch
    stream: str
    partition: str
    offsets: pa.Array
    raw: pa.Array | None = None
    message_keys: pa.Array | None = None
    times: pa.Array | None = None
    origins: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: npt.NDArray[np.int64], batch: pa.RecordBatch | None = None) -> Records:
        """Return the given rows, in that order. The columns are those of `batch`, if given, which must match `rows`."""
        picked = pa.array(rows)
        return replace(
            self,
            batch=self.batch.take(picked) if batch is None else batch,
            offsets=self.offsets.take(picked),
            raw=None if self.raw is None else self.raw.take(picked),
            message_keys=None if self.message_keys is None else self.message_keys.take(picked),
            times=None if self.times is None else self.times.take(picked),
            origins=None if self.origins is None else self.origins.take(picked),
        )

    def with_batch(self, batch: pa.RecordBatch) -> Records:
        """Return the same records with other columns, in the same order."""
        return replace(self, batch=batch)

    def dead_letter(self, row: int, reason: str, record_type: RecordType, step: str = "") -> DeadLetter:
        """Return the dead letter of one of the records."""
        return DeadLetter(
            reason=reason,
            stream=self.stream,
            step=step,
            partition=self.partition,
            offset=self.offsets[row].as_py(),
            raw=raw_bytes(self.raw, self.batch, row, record_type),
        )


def raw_bytes(raw: pa.Array | None, batch: pa.RecordBatch, row: int, record_type: RecordType) -> bytes:
    """Return the original bytes of a record, or JSON if its source has no bytes for it.

    The JSON is built from the columns, since the record's own class may have raised the error.
    """
    if raw is not None and raw[row].is_valid:
        found: bytes = raw[row].as_py()
        return found
    names = record_type.field_names
    return msgspec.json.encode({name: show_values(batch.column(name).slice(row, 1))[0] for name in names})


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that could not be processed, with everything needed to examine it and to send it again."""

    reason: str
    stream: str
    step: str
    partition: str
    offset: int
    raw: bytes

    @classmethod
    def of_bad_record(cls, stream: str, bad: BadRecord) -> DeadLetter:
        """Return the dead letter of a record that its source could not read."""
        return cls(bad.reason, stream, "", bad.partition, bad.offset, bad.raw)


@dataclass(frozen=True)
class Block:
    """Records of one stream and partition for one input of a step in one key group.

    Blocks sort by input, branch, stream, partition and first offset. Control streams are the first inputs, so they
    come before data. A replay sees the same order regardless of the shuffle. `branch` sorts the inputs of a union in
    the order of its streams.
    """

    input: int
    stream: str
    partition: str
    first_offset: int
    batch: pa.RecordBatch
    branch: str = ""

    @property
    def place(self) -> tuple[int, str, str, str]:
        """The origin of the records, which all blocks of one partition share."""
        return (self.input, self.branch, self.stream, self.partition)

    @property
    def order(self) -> tuple[int, str, str, str, int]:
        """The sorting key."""
        return (*self.place, self.first_offset)

    def column(self, name: str) -> pa.Array | None:
        """Return a column, or None if the block has no column of that name."""
        place = self.batch.schema.get_field_index(name)
        return None if place < 0 else self.batch.column(place)


def block_schema(
    record_type: RecordType, *, key_type: pa.DataType | None, raw: bool, timed: bool = False
) -> pa.Schema:
    """Return the columns of a block: those of the record and its offset, and optionally its key, raw bytes and time."""
    fields = [*record_type.schema, pa.field(OFFSET, pa.int64(), nullable=False)]
    if key_type is not None:
        fields.append(pa.field(KEY, key_type, nullable=False))
    if raw:
        fields.append(pa.field(RAW, pa.binary()))
    if timed:
        fields.append(pa.field(EVENT_TIME, pa.int64()))
    return pa.schema(fields)


def join_blocks(blocks: list[Block]) -> list[Block]:
    """Join neighbouring blocks of one partition into one block, since vectorised code is fast on large blocks."""
    joined: list[Block] = []
    start = 0
    for end in range(1, len(blocks) + 1):
        first = blocks[start]
        if end < len(blocks) and blocks[end].place == first.place:
            continue
        batches = [block.batch for block in blocks[start:end]]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        joined.append(dataclasses.replace(first, batch=batch))
        start = end
    return joined
