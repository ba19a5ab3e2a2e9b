"""Record reader: turn chunks of a source into packed rows. Runs in workers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.record_blocks import DeadLetter, Records
from penstock.operators.watermarks import INGESTION_TIME, WatermarkUpdate
from penstock.records.wire_formats import Format
from penstock.runtime.message_fields import MessageFields
from penstock.runtime.packed_rows import PackedRow, counts_row, packed_batches, times_row, watermark_rows
from penstock.runtime.plan import JobPlan
from penstock.runtime.router import Router, dead_letter_rows
from penstock.runtime.watermark_tracker import Timing
from penstock.sources.base import SourceChunk
from penstock.sources.chunk_times import TimesOfChunks
from penstock.streams.graph import Port, SourceNode

__all__ = ["StreamReader"]


@dataclass(frozen=True)
class StreamReader:
    """A reader that turns the chunks of one source into packed rows.

    `format` is None for sources that decode by themselves. With `lines`, raw values may end in a line end, which is
    not part of the record. `message_fields` adds the fields that are filled from messages.
    """

    plan: JobPlan
    node: SourceNode
    format: Format | None
    lines: bool = False
    message_fields: MessageFields | None = None

    @functools.cached_property
    def _router(self) -> Router:
        return Router(self.plan, Port(self.node.id))

    def batches(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the chunks' records as Arrow batches of PACKED_SCHEMA. `now_ms` is when they were planned."""
        return packed_batches(self.rows(chunks, now_ms), self.plan.slots)

    def rows(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[PackedRow]:
        """Yield the chunks' records as packed rows, and at the end their watermarks and counts."""
        count = size = 0
        timing = None
        if self.node.watermarks is not None and self.node.time != INGESTION_TIME:
            timing = Timing(self.node, now_ms, by_partition=self.node.name in self.plan.partitions)
        times = TimesOfChunks(now_ms)
        ended: dict[str, int | None] = {}
        for chunk in chunks:
            times.add(chunk)
            if chunk.ends:
                ended[chunk.partition] = None
            records, letters = self._decode(chunk)
            if timing is not None:
                records, untimely = timing.take(records)
                letters += untimely
            count += len(chunk.offsets) + len(chunk.bad)
            size += 0 if chunk.raw is None else chunk.raw.nbytes
            yield from dead_letter_rows(letters, self.plan)
            if len(records):
                yield from self._router.route(records)
        # Without a step, nothing uses a watermark.
        watermarks = timing.watermarks() if timing is not None and self.plan.graph.steps() else {}
        if watermarks:
            yield from watermark_rows(WatermarkUpdate(self.node.id, watermarks), self.plan.first_key_groups)
        if timing is not None and ended and self.plan.graph.steps():
            # Such partitions would hold back the watermark forever.
            update = WatermarkUpdate(self.node.id, ended, idle=True)
            yield from watermark_rows(update, self.plan.first_key_groups)
        if count:
            yield counts_row("in", self.node.name, count)
        if size:
            yield counts_row("in_bytes", self.node.name, size)
        # In real time every bundle of rows has its times.
        if not self.plan.in_real_time:
            yield from times_row(self.node.name, times.read)

    def _decode(self, chunk: SourceChunk) -> tuple[Records, list[DeadLetter]]:
        letters = [DeadLetter.of_bad_record(self.node.name, bad) for bad in chunk.bad]
        if chunk.batch is not None:
            return self._checked(chunk, chunk.batch, letters)
        assert chunk.raw is not None
        assert self.format is not None
        decoded = self.format.decode(chunk.raw)
        if self.message_fields is not None:
            decoded = self.message_fields.add(chunk, decoded)
        all_raw = _without_line_ends(chunk.raw) if self.lines else chunk.raw
        for row, reason in decoded.bad:
            raw = all_raw[row].as_py() or b""
            offset = chunk.offsets[row].as_py()
            letters.append(DeadLetter(reason, self.node.name, "", chunk.partition, offset, raw))
        name, partition = self.node.name, chunk.partition
        if decoded.rows is None:
            return Records(decoded.batch, name, partition, chunk.offsets, all_raw, chunk.keys), letters
        # When some records did not decode, the batch has the columns of the others only.
        whole = Records(decoded.batch, name, partition, chunk.offsets, all_raw, chunk.keys)
        return whole.take(decoded.rows, decoded.batch), letters

    def _checked(
        self, chunk: SourceChunk, batch: pa.RecordBatch, letters: list[DeadLetter]
    ) -> tuple[Records, list[DeadLetter]]:
        """Return the records of a source that has decoded them, and dead letters for those with NaN or no value."""
        records = Records(batch, self.node.name, chunk.partition, chunk.offsets, None, chunk.keys)
        kind = self.node.record_type
        reasons = kind.missing(batch, allow_nan=self.node.allow_nan, unchecked=True)
        if reasons is None:
            return records, letters
        letters += [
            records.dead_letter(int(row), str(reasons[row]), kind) for row in np.flatnonzero(reasons != "")
        ]
        return records.take(np.flatnonzero(reasons == "")), letters


def _without_line_ends(raw: pa.Array) -> pa.Array:
    # The kernel takes text but strips bytes, so it gets the same buffers as text.
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), offset=raw.offset)
    stripped = pc.ascii_rtrim(text, characters="\r\n")
    return pa.Array.from_buffers(pa.binary(), len(stripped), stripped.buffers(), offset=stripped.offset)
