"""Tallies: counts and distributions of the scores of each version of a model, and how far two versions agree.

They are for people and for policies: no score depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.state.undo import ABSENT, Undo, undo_of

__all__ = ["Tally", "VersionTally", "add_tallies", "drift_ks", "drift_psi", "scores_of", "slowest_ms"]

_BINS: Final = 64
_PER_UNIT: Final = 8.0
_LEAST: Final = 1e-4
# Counting more scores of one call would cost more than it tells.
_SAMPLE: Final = 1000
# Times of calls are counted by their size: this many counts for each doubling.
_PER_DOUBLING: Final = 4
_COUNTS: Final = ("records", "failures", "slow", "compared", "agreed", "late", "chosen")


class VersionTally(msgspec.Struct):
    """The counts of what one version has scored.

    `failures` counts the records without a usable score, `slow` those that took many times the budget.
    `compared` are the records that a shadow scored beside the version that serves, `agreed` those with the same result.
    In a group, `chosen` are the records whose score was taken, and `late` those for which it came too late. `bins`
    counts some of its scores by size, from the most negative ones to the largest. `seconds` is the time it took, and
    `calls` counts its calls by the time of one.
    """

    records: int = 0
    failures: int = 0
    slow: int = 0
    compared: int = 0
    agreed: int = 0
    late: int = 0
    chosen: int = 0
    seconds: float = 0.0
    bins: dict[int, int] = {}
    calls: dict[int, int] = {}


_decoder: Final = msgspec.json.Decoder(dict[str, dict[str, VersionTally]])


class Tally:
    """The tallies of one model in a run of a slot. If a record raises, its additions are taken back."""

    def __init__(self, undo: list[Undo]) -> None:
        self._undo: Final = undo
        self._counts: Final[dict[tuple[str, str, int], float]] = {}
        # Replaced, never changed, so that undo can put the earlier ones back.
        self._bins: Final[dict[str, npt.NDArray[np.int64]]] = {}

    def add(self, version: str, what: str, count: float, place: int = 0) -> None:
        """Add to a count."""
        if count:
            key = (version, what, place)
            before = self._counts.get(key)
            self._undo.append((self._counts, key, ABSENT if before is None else before))
            self._counts[key] = count if before is None else before + count

    def add_call(self, version: str, seconds: float) -> None:
        """Add the time of a call."""
        self.add(version, "seconds", seconds)
        self.add(version, "calls", 1, math.ceil(math.log2(max(seconds, 1e-6)) * _PER_DOUBLING))

    def add_scores(self, version: str, scores: npt.NDArray[Any]) -> None:
        """Add scores to the distribution: all of a few, else some of them, evenly spread."""
        some = scores[:: max(1, len(scores) // _SAMPLE)]
        counts = np.bincount(_bins(some), minlength=2 * _BINS)
        self._undo.append(undo_of(self._bins, version))
        before = self._bins.get(version)
        self._bins[version] = counts if before is None else before + counts

    def absorb(self, other: Tally) -> None:
        """Add what another tally of the model has counted, and let that one begin again."""
        for (version, what, place), count in other._counts.items():
            self.add(version, what, count, place)
        for version, bins in other._bins.items():
            self._undo.append(undo_of(self._bins, version))
            before = self._bins.get(version)
            self._bins[version] = bins if before is None else before + bins
        other._counts.clear()
        other._bins.clear()

    def take(self) -> dict[str, VersionTally]:
        """Return the tallies by version, and begin again."""
        found: dict[str, VersionTally] = {}
        for (version, what, place), count in sorted(self._counts.items()):
            tally = found.setdefault(version, VersionTally())
            if what == "calls":
                tally.calls = {**tally.calls, place: int(count)}
            else:
                setattr(tally, what, count if what == "seconds" else int(count))
        for version, bins in sorted(self._bins.items()):
            some = np.flatnonzero(bins)
            tally = found.setdefault(version, VersionTally())
            tally.bins = dict(zip((some - _BINS).tolist(), bins[some].tolist(), strict=True))
        self._counts.clear()
        self._bins.clear()
        return found


def add_tallies(totals: dict[str, VersionTally], more: Mapping[str, VersionTally]) -> None:
    """Add tallies to totals."""
    for version, tally in more.items():
        total = totals.setdefault(version, VersionTally())
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        total.seconds += tally.seconds
        total.bins = _sum(total.bins, tally.bins)
        total.calls = _sum(total.calls, tally.calls)


def _sum(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {place: one.get(place, 0) + other.get(place, 0) for place in sorted(one.keys() | other.keys())}


def scores_of(body: bytes) -> dict[str, dict[str, VersionTally]]:
    """Decode the report of a slot: the tallies of each version, by model."""
    return _decoder.decode(body)


def drift_psi(reference: VersionTally, other: VersionTally) -> float | None:
    """Return the population stability index between two distributions of scores; None if one is unknown.

    The sum over all bins of (p - q) ln(p / q), where p and q are the shares of a bin. Up to 0.1 means alike, from 0.25
    on different.
    """
    one, two = sum(reference.bins.values()), sum(other.bins.values())
    if not one or not two:
        return None
    total = 0.0
    for place in sorted(reference.bins.keys() | other.bins.keys()):
        p = max(other.bins.get(place, 0) / two, _LEAST)
        q = max(reference.bins.get(place, 0) / one, _LEAST)
        total += (p - q) * math.log(p / q)
    return total


def drift_ks(reference: VersionTally, other: VersionTally) -> float | None:
    """Return the Kolmogorov-Smirnov statistic of two distributions of scores; None if one is unknown.

    The largest difference between the shares of scores up to the end of a bin: 0 if both are the same, 1 if all scores
    of one are below those of the other.
    """
    one, two = sum(reference.bins.values()), sum(other.bins.values())
    if not one or not two:
        return None
    largest = difference = 0.0
    for place in sorted(reference.bins.keys() | other.bins.keys()):
        difference += other.bins.get(place, 0) / two - reference.bins.get(place, 0) / one
        largest = max(largest, abs(difference))
    return largest


def slowest_ms(tally: VersionTally, share: float = 0.99) -> float | None:
    """Return the time in milliseconds that a share of the calls has not exceeded, up to a fifth; None without any."""
    left = share * sum(tally.calls.values())
    for place in sorted(tally.calls):
        left -= tally.calls[place]
        if left <= 0:
            return float(2 ** (place / _PER_DOUBLING) * 1000)
    return None


def _bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the bin of each score: of even width near zero and of growing width beyond one."""
    numbers = np.nan_to_num(scores.astype(np.float64), nan=0.0)
    found = np.floor(np.arcsinh(numbers * 4) * _PER_UNIT)
    return np.clip(found, -_BINS, _BINS - 1).astype(np.int64) + _BINS
