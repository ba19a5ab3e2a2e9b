"""Quantiles: the value below which a share of all values lies, from five markers."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from penstock.errors import SchemaError
from penstock.learning.learner import Learner, Numbers

__all__ = ["Quantile"]

_MARKERS: Final = (1, 2, 3, 4, 5)


class Quantile(Learner):
    """A quantile of a field, by the P-squared method (R. Jain and I. Chlamtac, Communications of the ACM 28(10), 1985).

    Five markers are at the least value, the greatest, the quantile, and half-way; each value moves them along a
    parabola. The score is the quantile so far. Up to five values it is exact (the nearest one).

    >>> median = Quantile("ms", 0.5)
    >>> weights = median.start()
    >>> for ms in (8.0, 1.0, 3.0):
    ...     weights = median.learn(weights, {"ms": ms})
    >>> float(median.score(weights, {"ms": 0.0}))
    3.0

    Args:
        feature: the field.
        share: the share of values below the quantile, between 0 and 1.

    """

    weights: ClassVar = {
        "count": int,
        **{f"value_{at}": float for at in _MARKERS},
        **{f"place_{at}": int for at in (2, 3, 4)},
    }

    def __init__(self, feature: str, share: float) -> None:
        super().__init__(feature)
        if not 0 < share < 1:
            raise SchemaError(f"The share of a quantile is between 0 and 1, not {share}.")
        self.share: Final = share

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more value."""
        value, before = record[self.features[0]], weights["count"]
        count = before + 1
        values = [weights[f"value_{at}"] for at in _MARKERS]
        first = self._inserted(values, before, value)
        moved, places = self._moved(values, [1, *(weights[f"place_{at}"] for at in (2, 3, 4)), before], value)
        found = {"count": count}
        for at in _MARKERS:
            found[f"value_{at}"] = np.where(before < len(_MARKERS), first[at - 1], moved[at - 1])
        for at in (2, 3, 4):
            found[f"place_{at}"] = np.where(before < len(_MARKERS), at, places[at - 1])
        return found

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the quantile so far."""
        nearest = np.floor(self.share * (weights["count"] - 1) + 0.5)
        found = weights["value_3"]
        for at in _MARKERS:
            is_here = (weights["count"] < len(_MARKERS)) & (nearest == at - 1)
            found = np.where(is_here, weights[f"value_{at}"], found)
        return found + 0.0 * record[self.features[0]]

    def _inserted(self, values: list[Any], count: Any, value: Any) -> list[Any]:
        """Return the first `count` values in order, with one more."""
        known = [np.where(count > at, one, np.inf) for at, one in enumerate(values)]
        below: list[Any] = [-np.inf, *known[:-1]]
        placed = [np.minimum(np.maximum(low, value), high) for low, high in zip(below, known, strict=True)]
        return [np.where(count >= at, one, 0.0) for at, one in enumerate(placed)]

    def _moved(self, values: list[Any], places: list[Any], value: Any) -> tuple[list[Any], list[Any]]:
        """Return the markers after one more value, and their places among all values."""
        heights = [np.minimum(values[0], value), *values[1:4], np.maximum(values[4], value)]
        # A marker has one value more before it if the value is below it.
        ranks = [places[0], *(places[at] + (value < values[at]) for at in (1, 2, 3)), places[4] + 1]
        for at, share in ((1, self.share / 2), (2, self.share), (3, (1 + self.share) / 2)):
            away = 1 + (ranks[4] - 1) * share - ranks[at]
            up, down = ranks[at + 1] - ranks[at], ranks[at] - ranks[at - 1]
            step = np.where((away >= 1) & (up > 1), 1, np.where((away <= -1) & (down > 1), -1, 0))
            rise = (heights[at + 1] - heights[at]) / np.maximum(up, 1)
            fall = (heights[at] - heights[at - 1]) / np.maximum(down, 1)
            bend = ((down + step) * rise + (up - step) * fall) / np.maximum(up + down, 1)
            curved = heights[at] + step * bend
            straight = heights[at] + step * np.where(step > 0, rise, fall)
            is_between = (heights[at - 1] < curved) & (curved < heights[at + 1])
            heights[at] = np.where(step == 0, heights[at], np.where(is_between, curved, straight))
            ranks[at] = ranks[at] + step
        return heights, ranks
