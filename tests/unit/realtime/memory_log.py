"""A log in memory, to which tests append while a job reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sources.base import CountedLog, SourceChunk, Split


class MemoryLog(CountedLog):
    """Records as bytes; a position is the number of records before it."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.read_end = 0
        self.forgotten = 0

    def append(self, records: Sequence[bytes]) -> None:
        """Append records."""
        self.records += records

    def latest(self, start: int, *, limited: bool) -> int:  # as ReplayableLog
        """Return the end."""
        return max(start, len(self.records))

    def freeze(self) -> None:
        """Do nothing."""

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Cut a range into parts of about the same size."""
        cuts = [start + (end - start) * part // parallelism for part in range(parallelism + 1)]
        return [Split("", "", low, high) for low, high in itertools.pairwise(cuts) if high > low]

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        self.read_end = max(self.read_end, split.end)
        offsets = pa.array(range(split.start, split.end), pa.int64())
        yield SourceChunk("", offsets, raw=pa.array(self.records[split.start : split.end], pa.binary()))

    def forget(self, end: int) -> None:
        """Record the position before which nothing will be read again."""
        self.forgotten = end

    def lag(self, position: int) -> dict[str, Any]:
        """Return how many records are not yet read."""
        return {"files": len(self.records) - position}
