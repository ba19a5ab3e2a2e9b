"""Starts as a log: it grows by one each time that a job starts, and holds no records.

Spark makes no micro-batch after a start until something has come, so that timers that fell due while the job was down
would wait for the next record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.records import RecordType
from penstock.sources.base import SourceChunk, Split

__all__ = ["StartLog"]


class StartLog:
    """A log without records. A copy of it, as Spark makes one for each query, is one position ahead of its start."""

    def __init__(self) -> None:
        self._end: int | None = None
        self._is_frozen = False

    def latest(self, start: int, *, limited: bool) -> int:  # noqa: ARG002  # as ReplayableLog
        """One beyond where the query starts; where it is, in a bounded run, which does not wait for timers."""
        if self._end is None:
            self._end = start if self._is_frozen else start + 1
        return max(start, self._end)

    def freeze(self) -> None:
        """The run is bounded."""
        self._is_frozen = True

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:  # noqa: ARG002  # as ReplayableLog
        """Nothing to read."""
        return []

    def read(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # as ReplayableLog
        """Nothing."""
        return iter(())

    def forget(self, end: int) -> None:
        """Nothing is kept."""

    def lag(self, position: int) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Nothing waits."""
        return {}
