"""Tallies: what each version of a model has scored, how alike two versions score, and how scores are distributed.

They are for people: no result of a job depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.state.undo import Undo, undo_of

__all__ = ["Tally", "VersionTally", "add_tallies", "drift_psi", "scores_of"]

_BINS: Final = 64
_PER_UNIT: Final = 8.0
_LEAST: Final = 1e-4


class VersionTally(msgspec.Struct):
    """What one version has scored.

    `failures` are records for which it had no usable score. `compared` are the records that a shadow scored beside the
    version that serves, `agreed` those with the same result. `bins` counts scores by size while several versions score,
    from the most negative ones to the largest. `seconds` is the time it took.
    """

    records: int = 0
    failures: int = 0
    compared: int = 0
    agreed: int = 0
    seconds: float = 0.0
    bins: dict[int, int] = {}


_decoder: Final = msgspec.json.Decoder(dict[str, dict[str, VersionTally]])


class Tally:
    """The tallies of one model in a run of a slot. What a record that raises has added is taken back with it."""

    def __init__(self, undo: list[Undo]) -> None:
        self._undo: Final = undo
        self._counts: Final[dict[tuple[str, str, int], float]] = {}

    def add(self, version: str, what: str, count: float, place: int = 0) -> None:
        """Add to a count."""
        if count:
            key = (version, what, place)
            self._undo.append(undo_of(self._counts, key))
            self._counts[key] = self._counts.get(key, 0) + count

    def add_scores(self, version: str, scores: npt.NDArray[Any]) -> None:
        """Add scores to the distribution."""
        for place, count in enumerate(np.bincount(_bins(scores), minlength=2 * _BINS).tolist()):
            self.add(version, "bins", count, place - _BINS)

    def take(self) -> dict[str, VersionTally]:
        """Return the tallies by version, and begin again."""
        found: dict[str, VersionTally] = {}
        for (version, what, place), count in sorted(self._counts.items()):
            tally = found.setdefault(version, VersionTally())
            if what == "bins":
                tally.bins = {**tally.bins, place: int(count)}
            else:
                setattr(tally, what, count if what == "seconds" else int(count))
        self._counts.clear()
        return found


def add_tallies(totals: dict[str, VersionTally], more: Mapping[str, VersionTally]) -> None:
    """Add tallies to totals."""
    for version, tally in more.items():
        total = totals.setdefault(version, VersionTally())
        total.records += tally.records
        total.failures += tally.failures
        total.compared += tally.compared
        total.agreed += tally.agreed
        total.seconds += tally.seconds
        total.bins = {
            place: total.bins.get(place, 0) + tally.bins.get(place, 0)
            for place in sorted(total.bins.keys() | tally.bins.keys())
        }


def scores_of(body: bytes) -> dict[str, dict[str, VersionTally]]:
    """Decode what a slot reports: the tallies of each version, by model."""
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


def _bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the bin of each score: of even width near zero and of growing width beyond one."""
    numbers = np.nan_to_num(scores.astype(np.float64), nan=0.0)
    found = np.floor(np.arcsinh(numbers * 4) * _PER_UNIT)
    return np.clip(found, -_BINS, _BINS - 1).astype(np.int64) + _BINS
