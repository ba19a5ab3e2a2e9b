"""Starting and ending: what the stream of starts tells every slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.operators.watermarks import Tick
from penstock.records import record_type
from penstock.runtime.packing import packed_batches, tick_rows
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
    """Turns the end of time, which is all that the stream of starts has to read, into a tick for every slot."""

    plan: JobPlan
    node: SourceNode = START_NODE

    def batches(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # as StreamReader
        """The tick for each end, packed, as Arrow batches."""
        for _ in chunks:
            rows = tick_rows(Tick(self.node.id, {}, ends=True), self.plan.first_key_groups)
            yield from packed_batches(rows, self.plan.slots)
