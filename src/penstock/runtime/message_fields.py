"""Message fields: add the fields that are filled from messages to records that were decoded from their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.records.message_metadata import MessagePart, Metadata, typed_column
from penstock.records.types import RecordType, rows_where
from penstock.records.wire_formats import Decoded, decode_pieces
from penstock.sources.base import SourceChunk
from penstock.sources.partition_names import PartitionNames

__all__ = ["MessageFields"]


@dataclass(frozen=True)
class MessageFields:
    """The fields of a stream's records that are taken from messages. `names` says which partitions chunks are of."""

    record_type: RecordType
    metadata: Metadata
    names: PartitionNames

    def add(self, chunk: SourceChunk, decoded: Decoded) -> Decoded:
        """Return decoded bodies as whole records. A record with a part that does not fit is bad."""
        rows, body = decoded.rows, decoded.batch
        columns: dict[str, pa.Array] = {}
        reasons: dict[int, str] = {}
        for name, part in self.metadata:
            raw = _part_of(chunk, part, self.names)
            if rows is not None:
                raw = raw.take(pa.array(rows))
            columns[name], bad = typed_column(self.record_type.field(name), part, raw)
            reasons = {**bad, **reasons}
        schema = self.record_type.schema
        whole = [columns[name] if name in columns else body.column(name) for name in schema.names]
        found = Decoded(pa.RecordBatch.from_arrays(whole, schema=schema), rows, decoded.bad)
        found = _without(found, reasons)
        return self._checked(found) if hasattr(self.record_type.python_class, "__post_init__") else found

    def _checked(self, found: Decoded) -> Decoded:
        """Return the records after their class has checked or changed their values."""
        kind = self.record_type

        def made(part: Any) -> pa.RecordBatch:
            return kind.batch(kind.objects(part), check=False)

        batch, rows, bad = decode_pieces(found.batch, made, kind.schema)
        if rows is None:
            return Decoded(batch, found.rows, found.bad)
        return _numbered(found, batch, rows, dict(bad))


def _part_of(chunk: SourceChunk, part: MessagePart, names: PartitionNames) -> pa.Array:
    count = len(chunk.offsets)
    if part.kind == "key":
        return pa.nulls(count, pa.binary()) if chunk.keys is None else chunk.keys
    if part.kind == "timestamp":
        return pa.nulls(count, pa.int64()) if chunk.timestamps is None else chunk.timestamps
    if part.kind == "offset":
        return chunk.offsets
    if part.kind in ("topic", "partition"):
        topic, number = names.place(chunk.partition)
        value = topic.encode() if part.kind == "topic" else number
        return pa.repeat(pa.scalar(value, pa.binary() if part.kind == "topic" else pa.int64()), count)
    return chunk.headers[part.header] if part.header in chunk.headers else pa.nulls(count, pa.binary())


def _without(found: Decoded, reasons: dict[int, str]) -> Decoded:
    """Return the decoded records without the rows that have a reason."""
    if not reasons:
        return found
    keep = np.ones(len(found.batch), bool)
    keep[list(reasons)] = False
    return _numbered(found, rows_where(found.batch, keep), np.flatnonzero(keep), reasons)


def _numbered(found: Decoded, batch: pa.RecordBatch, kept: Any, reasons: dict[int, str]) -> Decoded:
    """Return some of the decoded rows. `kept` and `reasons` have their row numbers."""
    rows = np.arange(len(found.batch), dtype=np.int64) if found.rows is None else found.rows
    bad = [*found.bad, *((int(rows[row]), reason) for row, reason in reasons.items())]
    return Decoded(batch, rows[kept], sorted(bad))
