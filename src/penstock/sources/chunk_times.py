"""Chunk times: when the records of chunks were written, or found if their source does not know. For metrics only."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.metrics.source_times import SourceTimes, TimesRead
from penstock.sources.base import SourceChunk

__all__ = ["TimesOfChunks", "times_of"]


def times_of(chunks: Iterable[SourceChunk], now_ms: int | None) -> SourceTimes | None:
    """Return the times of the records of chunks that were found at a time; None if there are none."""
    return SourceTimes.merged(_times(chunk, now_ms) for chunk in chunks)


def _times(chunk: SourceChunk, now_ms: int | None) -> SourceTimes | None:
    count = len(chunk.offsets)
    if chunk.times is not None or not count:
        return chunk.times
    # A micro-batch that an earlier version planned does not say when.
    return SourceTimes.at(now_ms, count) if now_ms else None


class TimesOfChunks:
    """The times of the chunks of a micro-batch, which pass one by one."""

    def __init__(self, now_ms: int | None) -> None:
        self._now_ms = now_ms
        self._times: SourceTimes | None = None
        self._newest_ms: dict[str, int] = {}

    def add(self, chunk: SourceChunk) -> None:
        """Add a chunk, which follows the others of its partition."""
        self._times = SourceTimes.merged((self._times, _times(chunk, self._now_ms)))
        if chunk.times is not None:
            self._newest_ms[chunk.partition] = chunk.times.times_ms[-1]

    @property
    def read(self) -> TimesRead | None:
        """The times of the added chunks; None if they have none."""
        return None if self._times is None else TimesRead(self._times, self._newest_ms)
