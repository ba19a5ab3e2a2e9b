"""Starts as a log: it moves each time that a job starts, and when time ends for it.

Spark makes no micro-batch after a start until something has come, so that timers that fell due while the job was down
would wait for the next record. And what waits for the watermark when a bounded run comes to its end, or a job is
drained, must be told that nothing will follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sources.base import SourceChunk, Split

__all__ = ["StartLog"]


@dataclass
class StartLog:
    """The log of starts. Even positions are starts, odd ones ends; only an end has anything to read.

    Spark makes a copy of it for each query, which is beyond where the query began: by one start, or with `ends` by one
    end. A bounded run does not wait for timers, so it needs no start.
    """

    ends: bool = False
    _end: int | None = field(default=None, init=False)
    _is_frozen: bool = field(default=False, init=False)

    def latest(self, start: int, *, limited: bool) -> int:  # noqa: ARG002  # as ReplayableLog
        """The next start or end beyond where the query began."""
        if self._end is None:
            self._end = start
            if self.ends:
                self._end += 2 if start % 2 else 1
            elif not self._is_frozen:
                self._end += 1 if start % 2 else 2
        return max(start, self._end)

    def freeze(self) -> None:
        """The run is bounded."""
        self._is_frozen = True

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:  # noqa: ARG002  # as ReplayableLog
        """One when time ends there."""
        return [Split("", "", start, end)] if end > start and end % 2 else []

    def read(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # as ReplayableLog
        """The end, without records."""
        yield SourceChunk(split.partition, pa.array([], pa.int64()))

    def forget(self, end: int) -> None:
        """Nothing is kept."""

    def lag(self, position: int) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Nothing waits."""
        return {}
