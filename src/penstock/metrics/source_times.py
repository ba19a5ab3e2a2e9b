"""Source times: when the records that caused an output were written to their source, as a few weighted points."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

import msgspec

__all__ = ["MOST_POINTS", "SourceTimes", "TimesRead"]

MOST_POINTS: Final = 32
"""The maximum number of points."""


class SourceTimes(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The times of records, in milliseconds since 1970, ascending, and how many records each stands for.

    They are for metrics only. Nothing that a job keeps or writes may depend on them.

    >>> SourceTimes([1000, 1005], [1, 3]).spread(2)
    [(1000, 1), (1005, 1)]
    """

    times_ms: list[int]
    counts: list[int]

    @classmethod
    def at(cls, time_ms: int, count: int) -> Self:
        """Return the times of records that came at the same time."""
        return cls([time_ms], [count])

    @classmethod
    def of(cls, times_ms: Iterable[int], count: int) -> Self:
        """Return the times of `count` records, of which these are a sample that is spread evenly."""
        ordered = sorted(times_ms)
        assert len(ordered) <= count, "a sample is of some of the records"
        return cls(ordered, _shares([1] * len(ordered), count))

    @classmethod
    def merged(cls, parts: Iterable[SourceTimes | None]) -> SourceTimes | None:
        """Return all of these times, or None if there are none. Where there are many, neighbours become one point."""
        known = [part for part in parts if part is not None and part.counts]
        if len(known) <= 1:
            return known[0] if known else None
        return cls.of_points(itertools.chain.from_iterable(map(cls.points, known)))

    @classmethod
    def of_points(cls, points: Iterable[tuple[int, int]]) -> Self:
        """Return these times with their counts. Where there are many, neighbours become one point."""
        found = sorted(point for point in points if point[1])
        while len(found) > MOST_POINTS:
            found = list(_paired(found))
        return cls([time_ms for time_ms, _ in found], [count for _, count in found])

    def points(self) -> Iterator[tuple[int, int]]:
        """Return the times with their counts."""
        return zip(self.times_ms, self.counts, strict=True)

    def spread(self, outputs: int) -> list[tuple[int, int]]:
        """Attribute a number of outputs to these records, evenly; return times with their numbers of outputs.

        It is unknown which of the records that were processed together caused which output.
        """
        if len(self.times_ms) == 1:
            return [(self.times_ms[0], outputs)]
        shares = _shares(self.counts, outputs)
        return [(at, share) for at, share in zip(self.times_ms, shares, strict=True) if share]


class TimesRead(msgspec.Struct, array_like=True, frozen=True):
    """The report of a reader on the times of its stream in a micro-batch.

    `newest_ms` has the time of the last record of each partition, for sources whose records have times.
    """

    times: SourceTimes
    newest_ms: Mapping[str, int] = {}


def _shares(counts: list[int], total: int) -> list[int]:
    """Return shares of a total in proportion to counts, as integers that add up to it."""
    all_counts = sum(counts)
    half = all_counts // 2
    ends = [(at * total + half) // all_counts for at in itertools.accumulate(counts)]
    return [end - start for start, end in itertools.pairwise([0, *ends])]


def _paired(points: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start in range(0, len(points), 2):
        pair = points[start : start + 2]
        count = sum(one for _, one in pair)
        yield sum(at * one for at, one in pair) // count, count
