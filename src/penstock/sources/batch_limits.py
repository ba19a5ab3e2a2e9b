"""Batch limits: how many records of a topic a micro-batch may read, so that their bytes stay within a bound.

Kafka's brokers do not say how large records are. The driver learns it from the micro-batches and keeps a limit for each
topic in a file of the checkpoint; Spark's planner, another process on the same machine, looks there before each plan. A
new limit changes no replay, since Spark logs each plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.base.durable import write_atomically

__all__ = ["BATCH_LIMITS", "LARGEST_RECORD_BYTES", "BatchLimit", "StoredLimit", "read_limits", "write_limits"]

BATCH_LIMITS: Final = "batch-limits.json"
# Kafka's default limit for one record: the assumed size until the first records arrive.
LARGEST_RECORD_BYTES: Final = 1 << 20


class StoredLimit(NamedTuple):
    """The limit of a topic in records, and the mean size of its newest records; None before the first."""

    records: int
    mean_bytes: float | None = None


_limits: Final = msgspec.json.Decoder(dict[str, StoredLimit])


def write_limits(path: Path, limits: Mapping[str, StoredLimit]) -> None:
    """Replace the limits in a file, by stream. Raises OSError when the disk fails."""
    # A power cut may leave an empty file, and then the next run begins with small micro-batches.
    write_atomically(path, msgspec.json.encode(limits), durable=False)


def read_limits(path: Path) -> dict[str, StoredLimit]:
    """Return the limits in a file, by stream; none if it is missing or cannot be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return _limits.decode(path.read_bytes())
    return {}


@dataclass
class BatchLimit:
    """The limit of a stream's topic, as the file at `path` has it. Without it, the limit is `first`."""

    path: Path
    stream: str
    first: int
    _seen: tuple[int, int] | None = field(default=None, init=False)
    _records: int = field(default=0, init=False)

    def read(self) -> int:
        """Return how many records a micro-batch may read now. The file is read only when it has changed."""
        try:
            found = self.path.stat()
        except OSError:
            return self._records or self.first
        # Each version is another file.
        seen = found.st_ino, found.st_mtime_ns
        if seen != self._seen:
            limit = read_limits(self.path).get(self.stream)
            self._records = self.first if limit is None else limit.records
            self._seen = seen
        return self._records
