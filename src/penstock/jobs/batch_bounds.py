"""Bounds of micro-batches: limit the records of a topic in a micro-batch so that their bytes stay within a bound.

The micro-batches show how large records are. A limit that no longer fits is replaced in the file where Spark's planner
looks (`sources.batch_limits`), before the micro-batch that showed it is committed, so the next plan follows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.sizes import format_bytes, format_count
from penstock.bindings.types import RECORDS_PER_BATCH
from penstock.runtime.bound_source import BoundSource
from penstock.sources.batch_limits import (
    BATCH_LIMITS,
    LARGEST_RECORD_BYTES,
    BatchLimit,
    StoredLimit,
    read_limits,
    write_limits,
)
from penstock.sources.kafka_log import KafkaLog

__all__ = ["BatchBounds", "RecordSize", "TopicBounds", "next_limit"]

# The number of earlier records that count for the mean size, in addition to the newest.
_REMEMBERED_RECORDS: Final = 10_000
# A limit must be wrong by this factor before another one replaces it.
_TOLERANCE: Final = 2


class TopicBounds(NamedTuple):
    """The maximum that a micro-batch reads of a topic."""

    max_records: int
    max_bytes: int


@dataclass
class RecordSize:
    """The mean size of the newest records of a topic; None before the first."""

    mean_bytes: float | None = None
    _records: float = 0.0

    def see(self, records: int, size: int) -> None:
        """Add the records of a micro-batch and their total size in bytes."""
        if not records:
            return
        before = min(self._records, _REMEMBERED_RECORDS)
        self.mean_bytes = ((self.mean_bytes or 0.0) * before + size) / (before + records)
        self._records = before + records


def next_limit(bounds: TopicBounds, mean_bytes: float | None, limit: int = 0, records: int = 0) -> int:
    """Return how many records of a topic the next micro-batches may read.

    `limit` is the current limit, 0 before the first; `records` is the number that the last micro-batch read.

    >>> next_limit(TopicBounds(2_000_000, 256 << 20), None)
    256
    >>> next_limit(TopicBounds(2_000_000, 256 << 20), 1024, limit=256, records=256)
    262144
    """
    largest = LARGEST_RECORD_BYTES if mean_bytes is None else mean_bytes
    wanted = max(1, min(bounds.max_records, int(bounds.max_bytes / max(largest, 1.0))))
    if not limit or wanted * _TOLERANCE < limit:
        return wanted
    # A higher limit changes nothing if fewer records arrive than it allows. Spark rounds down for each partition.
    is_full = records * _TOLERANCE >= limit
    return wanted if is_full and wanted >= limit * _TOLERANCE else limit


class BatchBounds:
    """The bounds of a job's topics. `limits` has a limit for each bounded stream, for Spark's planner to read.

    `see` is called in Spark's thread, `notes` in the one that runs the job.
    """

    def __init__(self, folder: Path, topics: Mapping[str, TopicBounds]) -> None:
        self._path: Final = folder / BATCH_LIMITS
        self._topics: Final = topics
        self._notes: Final = deque[str]()
        stored = read_limits(self._path) if topics else {}
        self._sizes: Final = {
            stream: RecordSize(stored[stream].mean_bytes if stream in stored else None) for stream in topics
        }
        self._records: Final = {
            stream: next_limit(bounds, self._sizes[stream].mean_bytes) for stream, bounds in topics.items()
        }
        self._stored: dict[str, StoredLimit] = {}
        self._store()
        self.limits: Final = {
            stream: BatchLimit(self._path, stream, next_limit(bounds, None))
            for stream, bounds in topics.items()
        }

    @classmethod
    def of(cls, folder: Path, sources: Iterable[BoundSource], max_bytes: int | None = None) -> BatchBounds:
        """Return the bounds of the topics with a limit in bytes in their bindings. `max_bytes` is for the others.

        `folder` is that of the checkpoint.
        """
        topics = {}
        for source in sources:
            if not isinstance(source.log, KafkaLog):
                continue
            binding = source.log.binding
            limit = binding.max_bytes_per_batch or (None if source.node.is_control else max_bytes)
            if limit is not None:
                most = binding.max_records_per_batch or RECORDS_PER_BATCH
                topics[source.node.name] = TopicBounds(most, limit)
        return cls(folder, topics)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each limit that has changed since the last call."""
        while self._notes:
            yield self._notes.popleft()

    def see(self, records: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Add the records of a micro-batch and their bytes, by stream, and adapt the limits.

        Raises OSError when the disk fails.
        """
        for stream, bounds in self._topics.items():
            count, size = records.get(stream, 0), self._sizes[stream]
            if not count:
                continue
            size.see(count, sizes.get(stream, 0))
            before = self._records[stream]
            limit = self._records[stream] = next_limit(bounds, size.mean_bytes, before, count)
            if limit != before:
                self._notes.append(
                    f"A micro-batch of {stream!r} reads at most {format_count(limit, 'records')} from now on, since a "
                    f"record has about {format_bytes(size.mean_bytes or 0)}."
                )
        self._store()

    def _store(self) -> None:
        """Write the limits and sizes, unless they have hardly changed."""
        found = {
            name: StoredLimit(limit, self._sizes[name].mean_bytes) for name, limit in self._records.items()
        }
        if not all(_are_alike(limit, self._stored.get(name)) for name, limit in found.items()):
            write_limits(self._path, found)
            self._stored = found


def _are_alike(one: StoredLimit, other: StoredLimit | None) -> bool:
    if other is None or one.records != other.records:
        return False
    mean, before = one.mean_bytes or 0.0, other.mean_bytes or 0.0
    return mean <= before * _TOLERANCE and before <= mean * _TOLERANCE
