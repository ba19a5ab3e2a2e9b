"""Progress: Spark's reports of the micro-batches that it has committed, and of its checks for new data in between."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchProgress", "ProgressReader", "SourceProgress", "StateProgress"]


class StateProgress(msgspec.Struct, frozen=True, rename="camel"):
    """The state of one keyed level: the time that its tasks took to commit it."""

    commit_time_ms: int = 0


class SourceProgress(msgspec.Struct, frozen=True, rename="camel"):
    """The end offset of a source in the micro-batch, and its newest offset then; None if Spark does not report one."""

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
    """One micro-batch, by Spark's own number. `timestamp` is its start, and `duration_ms` has Spark's phases.

    While no data comes, Spark reports now and then that it found none, with the number of the next micro-batch.
    """

    batch_id: int
    timestamp: dt.datetime
    duration_ms: dict[str, float] = {}
    state_operators: list[StateProgress] = []
    sources: list[SourceProgress] = []

    @property
    def is_batch(self) -> bool:
        """Whether a micro-batch was processed, as opposed to a check that found no data."""
        return "addBatch" in self.duration_ms


class ProgressReader:
    """A reader of the progress of one query, which returns each micro-batch once.

    `newest` is Spark's last report, and `batch` the last micro-batch; both are None before the first.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Final[Any] = query._jsq  # noqa: SLF001  # PySpark's own objects take many calls of the JVM each
        self._last_read = (-1, "")
        self.newest: BatchProgress | None = None
        self.batch: BatchProgress | None = None

    def new(self) -> list[BatchProgress]:
        """Return the micro-batches committed since the last call, oldest first. Spark keeps the last 100."""
        newest = self._query.lastProgress()
        if newest is None:
            return []
        read = newest.batchId(), newest.timestamp()
        if read == self._last_read:
            return []
        self._last_read = read
        self.newest = _decoder.decode(newest.json())
        before = -1 if self.batch is None else self.batch.batch_id
        found = [self.newest] if self.newest.is_batch else []
        if self.newest.batch_id > before + 1:
            found = [*self._between(before, self.newest.batch_id), *found]
        if found:
            self.batch = found[-1]
        return found

    def _between(self, before: int, newest: int) -> list[BatchProgress]:
        """Return the micro-batches between two, if Spark committed several since the last call."""
        found: list[BatchProgress] = []
        for report in reversed(list(self._query.recentProgress())):
            number = report.batchId()
            if number <= before:
                break
            if number < newest:
                progress = _decoder.decode(report.json())
                found = [progress, *found] if progress.is_batch else found
        return found


_decoder: Final = msgspec.json.Decoder(BatchProgress)


def _offset(reported: Any) -> Any:
    """Return an offset, which Spark reports as JSON or as JSON text."""
    return json.loads(reported) if isinstance(reported, str) else reported
