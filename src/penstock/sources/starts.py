"""Starts as a log: it moves each time that a job starts, and when time ends for it.

Spark runs no micro-batch after a start until data arrives, so timers that fell due while the job was down would wait
for the next record. And when a bounded run reaches its end, or a job is drained, whatever waits for the watermark must
learn that nothing will follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sources.base import CountedLog, SourceChunk, Split

__all__ = ["StartLog"]


@dataclass
class StartLog(CountedLog):
    """The log of starts. Even positions are starts, odd ones ends; only ends have something to read.

    Spark copies it for each query. The copy moves beyond where the query began: by one start, or with `ends` by one
    end. A bounded run does not wait for timers, so it needs no start.
    """

    ends: bool = False
    _end: int | None = field(default=None, init=False)
    _is_frozen: bool = field(default=False, init=False)

    def latest(self, start: int, *, limited: bool) -> int:  # noqa: ARG002  # as ReplayableLog
        """Return the next start or end after the position at which the query began."""
        if self._end is None:
            self._end = start
            if self.ends:
                self._end += 2 if start % 2 else 1
            elif not self._is_frozen:
                self._end += 1 if start % 2 else 2
        return max(start, self._end)

    def freeze(self) -> None:
        """Note that the run is bounded."""
        self._is_frozen = True

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:  # noqa: ARG002  # as ReplayableLog
        """Return one split when time ends there, else none."""
        return [Split("", "", start, end)] if end > start and end % 2 else []

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # as ReplayableLog
        """Yield the end, without records."""
        yield SourceChunk(split.partition, pa.array([], pa.int64()))

    def forget(self, end: int) -> None:
        """Do nothing: nothing is kept."""

    def lag(self, position: int) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Return nothing: nothing waits."""
        return {}
