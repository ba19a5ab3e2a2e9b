"""Bounds of micro-batches: limit the records of a topic in a micro-batch so that their bytes stay within a bound.

Spark limits what it reads of a topic by records only, and fixes the limit when a query starts. The micro-batches show
how large records are. When the limit no longer fits, another query replaces the running one. A new limit changes no
replay, since Spark logs each plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.base.sizes import format_bytes, format_count
from penstock.bindings.types import RECORDS_PER_BATCH
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import CheckpointError
from penstock.runtime.bound_source import BoundSource
from penstock.sources.kafka_log import KafkaLog

__all__ = ["BatchBounds", "RecordSize", "TopicBounds", "next_limit"]

_FILE: Final = "record-bytes.json"
# Kafka's default limit for one record: the assumed size until the first records arrive.
_LARGEST_RECORD_BYTES: Final = 1 << 20
# The number of earlier records that count for the mean size, in addition to the newest.
_REMEMBERED_RECORDS: Final = 10_000
# A limit must be wrong by this factor before the query restarts for it.
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
    largest = _LARGEST_RECORD_BYTES if mean_bytes is None else mean_bytes
    wanted = max(1, min(bounds.max_records, int(bounds.max_bytes / max(largest, 1.0))))
    if not limit or wanted * _TOLERANCE < limit:
        return wanted
    # A higher limit changes nothing if fewer records arrive than it allows. Spark rounds down for each partition.
    is_full = records * _TOLERANCE >= limit
    return wanted if is_full and wanted >= limit * _TOLERANCE else limit


class BatchBounds:
    """The bounds of a job's topics. `limits` has the limits in records of the running query, by stream."""

    def __init__(self, checkpoint: Checkpoint, topics: Mapping[str, TopicBounds]) -> None:
        self._checkpoint: Final = checkpoint
        self._topics: Final = topics
        self._stored: dict[str, float] = _stored_sizes(checkpoint) if topics else {}
        self._sizes: Final = {stream: RecordSize(self._stored.get(stream)) for stream in topics}
        self.limits: dict[str, int] = {
            stream: next_limit(bounds, self._sizes[stream].mean_bytes) for stream, bounds in topics.items()
        }
        self._wanted = dict(self.limits)

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, sources: Iterable[BoundSource], max_bytes: int | None = None
    ) -> BatchBounds:
        """Return the bounds of the topics with a limit in bytes in their bindings. `max_bytes` is for the others."""
        topics = {}
        for source in sources:
            if not isinstance(source.log, KafkaLog):
                continue
            binding = source.log.binding
            limit = binding.max_bytes_per_batch or (None if source.node.is_control else max_bytes)
            if limit is not None:
                most = binding.max_records_per_batch or RECORDS_PER_BATCH
                topics[source.node.name] = TopicBounds(most, limit)
        return cls(checkpoint, topics)

    @property
    def are_outdated(self) -> bool:
        """Whether the query should continue with other limits."""
        return self._wanted != self.limits

    def changes(self) -> list[str]:
        """Return a sentence for each limit that will change."""
        return [
            f"A micro-batch of {stream!r} reads at most {format_count(limit, 'records')} from now on, since a record "
            f"has about {format_bytes(self._sizes[stream].mean_bytes or 0)}."
            for stream, limit in sorted(self._wanted.items())
            if limit != self.limits[stream]
        ]

    def renew(self) -> Mapping[str, int]:
        """Replace the limits of the query with the wanted ones, and return them."""
        self.limits = dict(self._wanted)
        return self.limits

    def see(self, records: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Add the records of a micro-batch and their bytes, by stream, and adapt the wanted limits."""
        for stream, bounds in self._topics.items():
            count, size = records.get(stream, 0), self._sizes[stream]
            if count:
                size.see(count, sizes.get(stream, 0))
                self._wanted[stream] = next_limit(bounds, size.mean_bytes, self.limits[stream], count)
        self._store()

    def _store(self) -> None:
        """Save the sizes for the start of the next run, if they have changed."""
        found = {name: size.mean_bytes for name, size in self._sizes.items() if size.mean_bytes is not None}
        if all(_alike(mean, self._stored.get(name, 0.0)) for name, mean in found.items()):
            return
        # Without the file the next run starts with a small micro-batch.
        with contextlib.suppress(OSError):
            self._checkpoint.save(_FILE, found)
            self._stored = found


def _alike(one: float, other: float) -> bool:
    return one <= other * _TOLERANCE and other <= one * _TOLERANCE


def _stored_sizes(checkpoint: Checkpoint) -> dict[str, float]:
    with contextlib.suppress(CheckpointError):
        return dict(checkpoint.load(_FILE, dict[str, float]))
    return {}
