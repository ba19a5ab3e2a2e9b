"""Progress: what Spark tells of each micro-batch that it has committed."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchProgress", "ProgressReader", "SourceProgress", "StateProgress"]


class StateProgress(msgspec.Struct, frozen=True, rename="camel"):
    """The state of one keyed level: how long its tasks took to commit it, and the memory of Spark's state store."""

    commit_time_ms: int = 0
    memory_used_bytes: int = 0


class SourceProgress(msgspec.Struct, frozen=True, rename="camel"):
    """Where a source ended in the micro-batch, and where it could have ended, as its offsets; None when not told."""

    end_offset: Any = None
    latest_offset: Any = None

    @property
    def end(self) -> Any:
        """The offset at the end of the micro-batch."""
        return _offset(self.end_offset)

    @property
    def latest(self) -> Any:
        """The newest offset of the source when the micro-batch was planned."""
        return _offset(self.latest_offset)


class BatchProgress(msgspec.Struct, frozen=True, rename="camel"):
    """One micro-batch, by Spark's own number; `timestamp` is when it began, and `duration_ms` has Spark's phases."""

    batch_id: int
    timestamp: dt.datetime
    duration_ms: dict[str, float] = {}
    state_operators: list[StateProgress] = []
    sources: list[SourceProgress] = []


class ProgressReader:
    """Reads the progress of one query, each micro-batch once. `last` is the newest."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Final[Any] = query._jsq  # noqa: SLF001  # PySpark's own objects take many calls of the JVM each
        self.last: BatchProgress | None = None

    def new(self) -> list[BatchProgress]:
        """The micro-batches that were committed since the last call, oldest first; Spark keeps the last 100."""
        newest = self._query.lastProgress()
        if newest is None:
            return []
        before = -1 if self.last is None else self.last.batch_id
        number = newest.batchId()
        if number <= before:
            return []
        found = [_decoder.decode(newest.json())]
        if number > before + 1:
            found = self._recent(before, found[0])
        self.last = found[-1]
        return found

    def _recent(self, before: int, newest: BatchProgress) -> list[BatchProgress]:
        """All that Spark still has behind a micro-batch, up to the newest."""
        found = [newest]
        for told in reversed(list(self._query.recentProgress())):
            number = told.batchId()
            if number <= before:
                break
            if number < found[0].batch_id:
                found.insert(0, _decoder.decode(told.json()))
        return found


_decoder: Final = msgspec.json.Decoder(BatchProgress)


def _offset(told: Any) -> Any:
    """An offset, which Spark gives as JSON, or as text of it."""
    return json.loads(told) if isinstance(told, str) else told
