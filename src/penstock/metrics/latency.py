"""Latency: how long records take from their source to the outputs that they cause, as a histogram."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

from penstock.metrics.source_times import SourceTimes

__all__ = [
    "LATENCY_BOUNDS_S",
    "Latency",
    "LatencyCounter",
    "Percentiles",
    "add_latencies",
    "latency_at",
    "percentiles_of",
]

LATENCY_BOUNDS_S: Final = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 60.0),
)
"""The upper bounds of the buckets of a latency, in seconds. One more bucket has what took longer."""

_BOUNDS_MS: Final = tuple(round(bound_s * 1000, 3) for bound_s in LATENCY_BOUNDS_S)


class Percentiles(msgspec.Struct, frozen=True):
    """The latency that half, 95 % and 99 % of the outputs did not exceed, and the longest, in seconds."""

    outputs: int
    p50_s: float
    p95_s: float
    p99_s: float
    longest_s: float


class Latency(msgspec.Struct, frozen=True, omit_defaults=True):
    """A histogram of latencies.

    `counts` has the number of outputs in each bucket of `LATENCY_BOUNDS_S`, without the empty buckets at the end.
    `sum_s` is the sum of all latencies, `longest_s` the longest, in seconds.

    >>> Latency((0, 3), 0.004, 0.0015).quantile_s(0.5)
    0.00125
    """

    counts: tuple[int, ...] = ()
    sum_s: float = 0.0
    longest_s: float = 0.0

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return sum(self.counts)

    @property
    def percentiles(self) -> Percentiles | None:
        """The usual percentiles; None without outputs."""
        if not self.outputs:
            return None
        p50_s, p95_s, p99_s = (round(self.quantile_s(fraction), 6) for fraction in (0.5, 0.95, 0.99))
        return Percentiles(self.outputs, p50_s, p95_s, p99_s, self.longest_s)

    def quantile_s(self, fraction: float) -> float:
        """Return the latency that a fraction of the outputs did not exceed, in seconds.

        It is interpolated within its bucket, so it is off by at most the width of the bucket.
        """
        wanted = fraction * self.outputs
        before = 0
        for place, count in enumerate(self.counts):
            if count and before + count >= wanted:
                low = LATENCY_BOUNDS_S[place - 1] if place else 0.0
                high = LATENCY_BOUNDS_S[place] if place < len(LATENCY_BOUNDS_S) else self.longest_s
                return min(low + (high - low) * (wanted - before) / count, self.longest_s)
            before += count
        return self.longest_s

    def plus(self, other: Latency) -> Self:
        """Return the sum of both."""
        counts = itertools.zip_longest(self.counts, other.counts, fillvalue=0)
        return type(self)(
            tuple(one + more for one, more in counts),
            round(self.sum_s + other.sum_s, 6),
            max(self.longest_s, other.longest_s),
        )


def add_latencies(before: Mapping[str, Latency], more: Mapping[str, Latency]) -> dict[str, Latency]:
    """Return the sums by sink, as a new dictionary."""
    found = dict(before)
    for sink, latency in more.items():
        known = found.get(sink)
        found[sink] = latency if known is None else known.plus(latency)
    return found


def percentiles_of(latencies: Mapping[str, Latency]) -> dict[str, Percentiles]:
    """Return the percentiles by sink, of those that have outputs."""
    return {sink: found for sink, latency in latencies.items() if (found := latency.percentiles)}


class LatencyCounter:
    """A histogram of latencies that grows."""

    def __init__(self) -> None:
        self._counts: Final = [0] * (len(_BOUNDS_MS) + 1)
        self._sum_ms = 0.0
        self._longest_ms = 0.0

    def add(self, points: Iterable[tuple[int, int]], now_ms: float) -> None:
        """Add outputs at a time, by the times of the records that caused them, in milliseconds since 1970.

        A record from the future, as from a clock that is ahead, counts as one of the present.
        """
        for time_ms, outputs in points:
            latency_ms = max(0.0, now_ms - time_ms)
            self._counts[bisect.bisect_left(_BOUNDS_MS, latency_ms)] += outputs
            self._sum_ms += latency_ms * outputs
            self._longest_ms = max(self._longest_ms, latency_ms)

    @property
    def latency(self) -> Latency:
        """The latency of all added outputs."""
        end = len(self._counts)
        while end and not self._counts[end - 1]:
            end -= 1
        return Latency(
            tuple(self._counts[:end]), round(self._sum_ms / 1000, 6), round(self._longest_ms / 1000, 6)
        )


def latency_at(times: SourceTimes, outputs: int, now_ms: float) -> Latency:
    """Return the latency of outputs at a time that these records caused."""
    counter = LatencyCounter()
    counter.add(times.spread(outputs), now_ms)
    return counter.latency
