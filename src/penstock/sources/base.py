"""The interface of sources: chunks of undecoded records with their positions in the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from penstock.metrics.source_times import SourceTimes
from penstock.records.types import BadRecord, RecordType

__all__ = [
    "GONE",
    "MISSING",
    "BadRecord",
    "CountedLog",
    "HeldLog",
    "ReplayableLog",
    "SourceChunk",
    "Split",
]

MISSING: Final = "@missing"
"""The path of a split whose records were deleted before they were read."""

GONE: Final = "@gone"
"""The path of the split with which a partition ends because its topic was deleted; its range was not read."""

PositionT = TypeVar("PositionT")


@dataclass(frozen=True)
class SourceChunk:
    """Consecutive records of one source partition.

    `partition` names the partition (a file name, or as in `PartitionNames`); partitions sort as strings in the order in
    which their records count. With `ends` the partition has no more records. `offsets` (int64) ascend within the
    chunk. Either `raw` holds the bytes of each record, to be decoded by the stream's format, or `batch` holds records
    that are already decoded (columns as in the stream's record type). `keys`, `timestamps` (milliseconds) and
    `headers`, by name, are those of messages, for sources that have them; null where a message has none. `times` says,
    for metrics only, when the records were written, if the source knows.
    """

    partition: str
    offsets: pa.Array
    raw: pa.Array | None = None
    batch: pa.RecordBatch | None = None
    keys: pa.Array | None = None
    bad: Sequence[BadRecord] = field(default=())
    timestamps: pa.Array | None = None
    headers: Mapping[str, pa.Array] = field(default_factory=dict)
    times: SourceTimes | None = None
    ends: bool = False


@dataclass(frozen=True)
class Split:
    """A part of a batch's input that one task reads: bytes or rows [start, end) of one partition. Plain data.

    `content` is the content of a file that tasks cannot reach.
    """

    partition: str
    path: str
    start: int
    end: int
    content: bytes | None = None


class ReplayableLog(Protocol[PositionT]):
    """A source as an append-only log with a position.

    Positions only grow: an int, or an offset for each partition. The same (start, end) always returns the same splits
    and the same records: the log is durable before a position beyond it is reported.
    """

    def beginning(self) -> PositionT:
        """Return where a job without a checkpoint begins to read; the same each time."""

    def encode(self, position: PositionT) -> dict[str, Any]:
        """Encode a position as a JSON object, for Spark's offset log and for snapshots."""

    def decode(self, offset: Mapping[str, Any]) -> PositionT:
        """Decode a position, which may be followed by other fields."""

    def latest(self, start: PositionT, *, limited: bool) -> PositionT:
        """Return the newest position to read up to from `start`; with `limited`, at most one batch's worth ahead."""

    def freeze(self) -> None:
        """Fix the end: from now on `latest` never passes the present end (bounded runs)."""

    def splits(self, start: PositionT, end: PositionT, parallelism: int) -> list[Split]:
        """Return the parts between two positions, in order, cut so that about `parallelism` tasks share the work."""

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of the splits of one task, in order. Runs in a worker."""

    def forget(self, end: PositionT) -> None:
        """Forget everything before `end`, which will never be read again."""

    def newest(self) -> PositionT | None:
        """Return the end of the log that the last call of `latest` has found, if `lag` cannot ask for it."""

    def lag(self, position: PositionT) -> dict[str, Any]:
        """Return the amounts that wait after `position`, for display: for example {"files": 3}."""


class CountedLog:
    """The base class of logs whose positions are ints."""

    def beginning(self) -> int:
        """Return 0."""
        return 0

    def encode(self, position: int) -> dict[str, Any]:
        """Encode a position as a JSON object."""
        return {"position": position}

    def decode(self, offset: Mapping[str, Any]) -> int:
        """Decode a position."""
        return int(offset["position"])

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of splits, in order."""
        for split in splits:
            yield from self._read_split(split, record_type)

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        raise NotImplementedError

    def newest(self) -> None:
        """Return None: `lag` looks for itself."""


@dataclass(frozen=True)
class HeldLog(Generic[PositionT]):
    """A paused log: it ends at the position of the reader, but planned records can be read again."""

    log: ReplayableLog[PositionT]

    def beginning(self) -> PositionT:
        """Return the beginning of the log."""
        return self.log.beginning()

    def encode(self, position: PositionT) -> dict[str, Any]:
        """Encode a position of the log."""
        return self.log.encode(position)

    def decode(self, offset: Mapping[str, Any]) -> PositionT:
        """Decode a position of the log."""
        return self.log.decode(offset)

    def latest(self, start: PositionT, *, limited: bool) -> PositionT:  # noqa: ARG002  # as ReplayableLog
        """Return the position of the reader."""
        return start

    def freeze(self) -> None:
        """Do nothing: the log does not move anyway."""

    def splits(self, start: PositionT, end: PositionT, parallelism: int) -> list[Split]:
        """Return the splits of the log."""
        return self.log.splits(start, end, parallelism)

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of splits of the log."""
        return self.log.read(splits, record_type)

    def forget(self, end: PositionT) -> None:
        """Forget everything before `end` in the log."""
        self.log.forget(end)

    def newest(self) -> PositionT | None:
        """Return the end of the log."""
        return self.log.newest()

    def lag(self, position: PositionT) -> dict[str, Any]:
        """Return how much waits in the log after `position`."""
        return self.log.lag(position)
