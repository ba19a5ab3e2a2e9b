"""Rate source: numbers that arrive at an even rate by the clock, for demonstrations and load tests.

Nothing is stored: the numbers between two moments follow from the rate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.bindings.types import RateBinding
from penstock.errors import BindingError
from penstock.records.types import RecordType
from penstock.sources.base import CountedLog, SourceChunk, Split

__all__ = ["RateLog", "check_schema"]

_PARTITION: Final = "rate"
_SMALL: Final = 10_000
_CHUNK: Final = 65_536
_FIRST_MS: Final = 1_000
_MAX_RECORDS: Final = 2_000_000


def check_schema(stream: str, record_type: RecordType) -> None:
    """Raise BindingError unless records are one whole number."""
    fields = list(record_type.schema)
    if len(fields) != 1 or fields[0].type != pa.int64():
        raise BindingError(
            f"The records of a rate are numbers, but those of {stream!r} have the fields "
            f"{', '.join(record_type.schema.names)}. Declare a schema with one field of the type int, and derive other "
            "records from it with map."
        )


@dataclass
class RateLog(CountedLog):
    """The moments since 1970, in milliseconds, as a log. Number n arrives at the moment n * 1000 / rate.

    A job without a checkpoint begins one second in the past. Numbers from while a job was down are read, as with any
    log.
    """

    binding: RateBinding
    _frozen_ms: int | None = field(default=None, init=False)

    def latest(self, start: int, *, limited: bool) -> int:
        """Return the present, or as far as one micro-batch may read."""
        end = _now_ms() if self._frozen_ms is None else self._frozen_ms
        if limited and start:
            end = min(end, start + _MAX_RECORDS * 1000 // self.binding.rate)
        return max(start, end)

    def freeze(self) -> None:
        """Fix the end at the present: no more numbers arrive."""
        self._frozen_ms = _now_ms()

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Return the numbers between two moments."""
        first, last = self._number(start or end - _FIRST_MS), self._number(end)
        parts = min(parallelism, -(-(last - first) // _SMALL))
        cuts = [first + (last - first) * part // max(parts, 1) for part in range(parts + 1)]
        return [Split(_PARTITION, "", a, b) for a, b in itertools.pairwise(cuts)]

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the numbers of a split."""
        for first in range(split.start, split.end, _CHUNK):
            numbers = pa.array(np.arange(first, min(first + _CHUNK, split.end), dtype=np.int64))
            batch = pa.record_batch([numbers], schema=record_type.schema)
            yield SourceChunk(split.partition, numbers, batch=batch)

    def forget(self, end: int) -> None:
        """Do nothing: nothing is kept."""

    def lag(self, position: int) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Return nothing: numbers are made when they are read."""
        return {}

    def _number(self, at_ms: int) -> int:
        """Return the first number that arrives at a moment or later."""
        return -(-at_ms * self.binding.rate // 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
