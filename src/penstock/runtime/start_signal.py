"""Start signal: the watermark updates that the stream of starts sends to every slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.operators.watermarks import WatermarkUpdate
from penstock.records.schemas import record_type
from penstock.runtime.packed_rows import PackedRow, packed_batches, watermark_rows
from penstock.runtime.plan import JobPlan
from penstock.sources.base import SourceChunk
from penstock.streams.graph import SourceNode
from penstock.streams.own_streams import STARTS

__all__ = ["START_NODE", "StartReader"]

# A control stream, so that it continues while data streams are held.
START_NODE: Final = SourceNode(
    f"source/{STARTS}", STARTS, True, record_type("nothing BINARY"), protobuf=None, allow_nan=False
)


@dataclass(frozen=True)
class StartReader:
    """A reader that turns the end of time, the only content of the stream of starts, into updates for every slot."""

    plan: JobPlan
    node: SourceNode = START_NODE

    def batches(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # as StreamReader
        """Yield the watermark updates of each end of time, as packed Arrow batches."""
        yield from packed_batches(self.rows(chunks), self.plan.slots)

    def rows(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[PackedRow]:  # noqa: ARG002  # as StreamReader
        """Yield the same, row by row."""
        for _ in chunks:
            yield from watermark_rows(
                WatermarkUpdate(self.node.id, {}, ends=True), self.plan.first_key_groups
            )
