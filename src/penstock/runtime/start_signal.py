"""Start signal: what the stream of starts tells every slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.operators.watermarks import WatermarkUpdate
from penstock.records.schemas import record_type
from penstock.runtime.packed_rows import packed_batches, watermark_rows
from penstock.runtime.plan import JobPlan
from penstock.sources.base import SourceChunk
from penstock.streams.graph import STARTS, SourceNode

__all__ = ["START_NODE", "StartReader"]

# As a control stream it goes on while data streams are held.
START_NODE: Final = SourceNode(
    f"source/{STARTS}", STARTS, True, record_type("nothing BINARY"), protobuf=None, allow_nan=False
)


@dataclass(frozen=True)
class StartReader:
    """Turns the end of time, all that the stream of starts has to read, into a watermark update for every slot."""

    plan: JobPlan
    node: SourceNode = START_NODE

    def batches(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # as StreamReader
        """The watermark update for each end, packed, as Arrow batches."""
        for _ in chunks:
            rows = watermark_rows(WatermarkUpdate(self.node.id, {}, ends=True), self.plan.first_key_groups)
            yield from packed_batches(rows, self.plan.slots)
