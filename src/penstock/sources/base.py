"""The interface of sources: chunks of undecoded records with their positions in the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.records.types import BadRecord, RecordType

__all__ = ["BadRecord", "HeldLog", "ReplayableLog", "SourceChunk", "Split"]


@dataclass(frozen=True)
class SourceChunk:
    """Consecutive records of one source partition.

    `partition` names the partition (a file name, a zero-padded Kafka partition); partitions sort as strings in
    the order in which their records count. `offsets` (int64) ascend within the chunk. Either `raw` holds the bytes
    of each record, to be decoded by the stream's format, or `batch` holds records that are already decoded (columns as
    in the stream's record type). `keys` are message keys, for sources that have them.
    """

    partition: str
    offsets: pa.Array
    raw: pa.Array | None = None
    batch: pa.RecordBatch | None = None
    keys: pa.Array | None = None
    bad: Sequence[BadRecord] = field(default=())


@dataclass(frozen=True)
class Split:
    """A part of a batch's input that one task reads: bytes or rows [start, end) of one partition. Plain data."""

    partition: str
    path: str
    start: int
    end: int


class ReplayableLog(Protocol):
    """A source as an append-only log with a position, for sources that Spark does not read itself.

    Positions are small ints that only grow. The same (start, end) always returns the same splits and the same records:
    the log is durable before a position beyond it is reported.
    """

    def latest(self, start: int, *, limited: bool) -> int:
        """Return the newest position to read up to from `start`; with `limited`, at most one batch's worth ahead."""

    def freeze(self) -> None:
        """Fix the end: from now on `latest` never passes the present end (bounded runs)."""

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Return the parts between two positions, in order, cut so that about `parallelism` tasks share the work."""

    def read(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of a split. Runs in a worker."""

    def forget(self, end: int) -> None:
        """Forget everything before `end`, which will never be read again."""

    def lag(self, position: int) -> dict[str, Any]:
        """Return what waits after `position`, for people: for example {"files": 3}."""


@dataclass(frozen=True)
class HeldLog:
    """A paused log: it ends where the reader is, though what was planned can be read again."""

    log: ReplayableLog

    def latest(self, start: int, *, limited: bool) -> int:  # noqa: ARG002  # as ReplayableLog
        """Return where the reader is."""
        return start

    def freeze(self) -> None:
        """Do nothing: the log does not move anyway."""

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Return the splits of the log."""
        return self.log.splits(start, end, parallelism)

    def read(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of a split of the log."""
        return self.log.read(split, record_type)

    def forget(self, end: int) -> None:
        """Forget everything before `end` in the log."""
        self.log.forget(end)

    def lag(self, position: int) -> dict[str, Any]:
        """Return what waits in the log after `position`."""
        return self.log.lag(position)
