"""Bounds of micro-batches: how many records of a topic go into one, so that their bytes stay within a bound.

Spark bounds what it reads of a topic by records alone, and fixes that when a query starts. How large records are is
seen in the micro-batches. Where the bound in records no longer fits, the query goes on as another one; that a plan is
made with another bound changes no replay, since Spark logs each plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.base.sizes import bytes_text, counted
from penstock.bindings.types import RECORDS_PER_BATCH, KafkaBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import CheckpointError
from penstock.spark.query import BoundSource

__all__ = ["BatchBounds", "RecordSize", "TopicBounds", "next_limit"]

_FILE: Final = "record-bytes.json"
# Kafka's own limit for one record, which counts until the first ones have come.
_LARGEST_RECORD_BYTES: Final = 1 << 20
# How many records before the newest ones still count for their mean size.
_REMEMBERED_RECORDS: Final = 10_000
# By what factor a bound must be wrong before the query is started anew for it.
_TOLERANCE: Final = 2


class TopicBounds(NamedTuple):
    """What of a topic goes into a micro-batch at most."""

    most_records: int
    most_bytes: int


@dataclass
class RecordSize:
    """The mean size of the newest records of a topic; None as long as there was none."""

    mean_bytes: float | None = None
    _records: float = 0.0

    def see(self, records: int, size: int) -> None:
        """Take note of the records of a micro-batch, and of their bytes together."""
        if not records:
            return
        before = min(self._records, _REMEMBERED_RECORDS)
        self.mean_bytes = ((self.mean_bytes or 0.0) * before + size) / (before + records)
        self._records = before + records


def next_limit(bounds: TopicBounds, mean_bytes: float | None, limit: int = 0, records: int = 0) -> int:
    """How many records of a topic the next micro-batches take, after one of so many, with a limit before if any.

    >>> next_limit(TopicBounds(2_000_000, 256 << 20), None)
    256
    >>> next_limit(TopicBounds(2_000_000, 256 << 20), 1024, limit=256, records=256)
    262144
    """
    largest = _LARGEST_RECORD_BYTES if mean_bytes is None else mean_bytes
    wanted = max(1, min(bounds.most_records, int(bounds.most_bytes / max(largest, 1.0))))
    if not limit or wanted * _TOLERANCE < limit:
        return wanted
    # Where less comes than may, a higher limit would change nothing. Spark rounds down for each partition.
    is_full = records * _TOLERANCE >= limit
    return wanted if is_full and wanted >= limit * _TOLERANCE else limit


class BatchBounds:
    """The bounds of a job's topics. `limits` has those in records with which its query runs, by stream."""

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
    def of(cls, checkpoint: Checkpoint, sources: Iterable[BoundSource]) -> BatchBounds:
        """The bounds of the topics whose bindings bound their bytes."""
        topics = {}
        for source in sources:
            binding = source.input
            if isinstance(binding, KafkaBinding) and binding.max_bytes_per_batch is not None:
                most = binding.max_records_per_batch or RECORDS_PER_BATCH
                topics[source.node.name] = TopicBounds(most, binding.max_bytes_per_batch)
        return cls(checkpoint, topics)

    @property
    def are_outdated(self) -> bool:
        """Whether the query should go on with other limits."""
        return self._wanted != self.limits

    def changes(self) -> list[str]:
        """Sentences on the limits that are to change."""
        return [
            f"A micro-batch of {stream!r} takes at most {counted(limit, 'records')} from now on, since they have some "
            f"{bytes_text(self._sizes[stream].mean_bytes or 0)} each."
            for stream, limit in sorted(self._wanted.items())
            if limit != self.limits[stream]
        ]

    def renew(self) -> Mapping[str, int]:
        """Take the limits that are wanted for those of the query, and give them."""
        self.limits = dict(self._wanted)
        return self.limits

    def see(self, records: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Take note of the records of a micro-batch, and of their bytes, by stream."""
        for stream, bounds in self._topics.items():
            count, size = records.get(stream, 0), self._sizes[stream]
            if count:
                size.see(count, sizes.get(stream, 0))
                self._wanted[stream] = next_limit(bounds, size.mean_bytes, self.limits[stream], count)
        self._store()

    def _store(self) -> None:
        """Note the sizes, with which the next run begins, where they have changed."""
        found = {name: size.mean_bytes for name, size in self._sizes.items() if size.mean_bytes is not None}
        if all(_alike(mean, self._stored.get(name, 0.0)) for name, mean in found.items()):
            return
        # Without it the next run begins with a small micro-batch.
        with contextlib.suppress(OSError):
            self._checkpoint.save(_FILE, found)
            self._stored = found


def _alike(one: float, other: float) -> bool:
    return one <= other * _TOLERANCE and other <= one * _TOLERANCE


def _stored_sizes(checkpoint: Checkpoint) -> dict[str, float]:
    with contextlib.suppress(CheckpointError):
        return dict(checkpoint.load(_FILE, dict[str, float]))
    return {}
