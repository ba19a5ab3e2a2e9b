"""Progress: what Spark tells of each micro-batch that it has committed, and of its looks for new data in between."""

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
    """One micro-batch, by Spark's own number; `timestamp` is when it began, and `duration_ms` has Spark's phases.

    While nothing comes Spark tells now and then that it has looked in vain, under the number of the micro-batch that
    comes next.
    """

    batch_id: int
    timestamp: dt.datetime
    duration_ms: dict[str, float] = {}
    state_operators: list[StateProgress] = []
    sources: list[SourceProgress] = []

    @property
    def is_batch(self) -> bool:
        """Whether a micro-batch was processed, and it was not a look in vain."""
        return "addBatch" in self.duration_ms


class ProgressReader:
    """Reads the progress of one query, each micro-batch once.

    `newest` is what Spark told last, `batch` the last micro-batch; None before the first.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Final[Any] = query._jsq  # noqa: SLF001  # PySpark's own objects take many calls of the JVM each
        self._told = (-1, "")
        self.newest: BatchProgress | None = None
        self.batch: BatchProgress | None = None

    def new(self) -> list[BatchProgress]:
        """The micro-batches that were committed since the last call, oldest first; Spark keeps the last 100."""
        newest = self._query.lastProgress()
        if newest is None:
            return []
        told = newest.batchId(), newest.timestamp()
        if told == self._told:
            return []
        self._told = told
        self.newest = _decoder.decode(newest.json())
        before = -1 if self.batch is None else self.batch.batch_id
        found = [self.newest] if self.newest.is_batch else []
        if self.newest.batch_id > before + 1:
            found = [*self._between(before, self.newest.batch_id), *found]
        if found:
            self.batch = found[-1]
        return found

    def _between(self, before: int, newest: int) -> list[BatchProgress]:
        """The micro-batches between two, which Spark told in quick succession."""
        found: list[BatchProgress] = []
        for told in reversed(list(self._query.recentProgress())):
            number = told.batchId()
            if number <= before:
                break
            if number < newest:
                progress = _decoder.decode(told.json())
                found = [progress, *found] if progress.is_batch else found
        return found


_decoder: Final = msgspec.json.Decoder(BatchProgress)


def _offset(told: Any) -> Any:
    """An offset, which Spark gives as JSON, or as text of it."""
    return json.loads(told) if isinstance(told, str) else told
