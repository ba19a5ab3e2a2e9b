"""Running statistics: moments, covariance, exponential means and histograms of the fields of records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from penstock.errors import SchemaError
from penstock.learning.learner import Learner, Numbers

__all__ = ["Covariance", "ExponentialMean", "Histogram", "Moments"]

# A covariance has (n + 1)(n + 2) / 2 weights.
_MOST_FIELDS: Final = 30
# With more of them LAPACK is faster than columns.
_MOST_ELIMINATED: Final = 6


class Moments(Learner):
    """The mean and the variance of a field, by Welford's method (Technometrics 4(3), 1962).

    The score is the distance of a value from the mean in standard deviations, and 0 before two values.

    >>> moments = Moments("celsius")
    >>> weights = moments.start()
    >>> for celsius in (20.0, 22.0):
    ...     weights = moments.learn(weights, {"celsius": celsius})
    >>> weights
    {'count': 2, 'mean': 21.0, 'squares': 2.0}

    Args:
        feature: the field.

    """

    weights: ClassVar = {"count": int, "mean": float, "squares": float}

    def __init__(self, feature: str) -> None:
        super().__init__(feature)

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more value: their number, mean, and sum of squared distances from it."""
        value = record[self.features[0]]
        count = weights["count"] + 1
        before = value - weights["mean"]
        mean = weights["mean"] + before / count
        return {"count": count, "mean": mean, "squares": weights["squares"] + before * (value - mean)}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the distance from the mean in standard deviations."""
        variance = weights["squares"] / np.maximum(weights["count"] - 1, 1)
        return _in_deviations(record[self.features[0]] - weights["mean"], variance)


class ExponentialMean(Learner):
    """The mean and the variance of a field in which older values count less and less.

    The score is the distance of a value from the mean in standard deviations, and 0 while all were equal. (T. Finch,
    Incremental calculation of weighted mean and variance, 2009.)

    Args:
        feature: the field.
        share: the weight of the newest value in the mean, above 0 and up to 1.

    """

    weights: ClassVar = {"count": int, "mean": float, "variance": float}

    def __init__(self, feature: str, share: float = 0.1) -> None:
        super().__init__(feature)
        if not 0 < share <= 1:
            raise SchemaError(f"The share of an exponential mean is above 0 and up to 1, not {share}.")
        self.share: Final = share

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more value; the first one is the mean."""
        value, is_first = record[self.features[0]], weights["count"] == 0
        before = value - weights["mean"]
        step = self.share * before
        mean = np.where(is_first, value, weights["mean"] + step)
        variance = np.where(is_first, 0.0, (1 - self.share) * (weights["variance"] + before * step))
        return {"count": weights["count"] + 1, "mean": mean, "variance": variance}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the distance from the mean in standard deviations."""
        return _in_deviations(record[self.features[0]] - weights["mean"], weights["variance"])


class Covariance(Learner):
    """The means of several fields, and how these vary together.

    The score is the Mahalanobis distance: how unusual the values are together, in standard deviations. It is 0
    until there are two records more than fields.

    Args:
        features: the fields, at most 30.
        ridge: added to each variance, with this share of it, so that fields that never vary, or always together, have a
            distance too.

    """

    def __init__(self, *features: str, ridge: float = 1e-9) -> None:
        super().__init__(*features)
        if len(features) > _MOST_FIELDS:
            raise SchemaError(
                f"The covariance of {len(features)} fields has too many weights for each key; give at most "
                f"{_MOST_FIELDS}."
            )
        if not ridge > 0:
            raise SchemaError(f"The ridge of a covariance is above 0, not {ridge}.")
        self.ridge: Final = ridge

    def _pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations_with_replacement(self.features, 2))

    def weight_types(self) -> Mapping[str, type[int | float]]:
        """Return the types of the weights: the number of records, means, and sums of products of distances."""
        means = {f"mean_{name}": float for name in self.features}
        products = {f"product_{one}_{other}": float for one, other in self._pairs()}
        return {"count": int, **means, **products}

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more record."""
        count = weights["count"] + 1
        before = {name: record[name] - weights[f"mean_{name}"] for name in self.features}
        found = {f"mean_{name}": weights[f"mean_{name}"] + before[name] / count for name in self.features}
        after = {name: record[name] - found[f"mean_{name}"] for name in self.features}
        for one, other in self._pairs():
            name = f"product_{one}_{other}"
            found[name] = weights[name] + before[one] * after[other]
        return {"count": count, **found}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the Mahalanobis distance."""
        distances = [record[name] - weights[f"mean_{name}"] for name in self.features]
        is_known = weights["count"] >= len(self.features) + 2
        by_number = np.maximum(weights["count"] - 1, 1)
        variances: dict[tuple[int, int], Any] = {}
        for (i, one), (j, other) in itertools.combinations_with_replacement(enumerate(self.features), 2):
            variance = weights[f"product_{one}_{other}"] / by_number
            # The ridge is also proportional, or rounding would lose fields that always vary together.
            variances[j, i] = variance * (1 + self.ridge) + self.ridge if i == j else variance
        few = len(self.features) <= _MOST_ELIMINATED
        squared = (
            _eliminated(variances, distances, self.ridge) if few else _solved(variances, distances, is_known)
        )
        return np.where(is_known, np.sqrt(np.maximum(squared, 0.0)), 0.0)


def _eliminated(variances: dict[tuple[int, int], Any], distances: list[Any], least: float) -> Any:
    """Return the squared Mahalanobis distance, by LDL decomposition element by element."""
    pivots: list[Any] = []
    solved: list[Any] = []
    factors: dict[tuple[int, int], Any] = {}
    squared: Any = 0.0
    for j, distance in enumerate(distances):
        pivot, rest = variances[j, j], distance
        for k in range(j):
            pivot = pivot - factors[j, k] * factors[j, k] * pivots[k]
            rest = rest - factors[j, k] * solved[k]
        pivot = np.maximum(pivot, least)
        for i in range(j + 1, len(distances)):
            factor = variances[i, j]
            for k in range(j):
                factor = factor - factors[i, k] * factors[j, k] * pivots[k]
            factors[i, j] = factor / pivot
        pivots.append(pivot)
        solved.append(rest)
        squared = squared + rest * rest / pivot
    return squared


def _solved(variances: dict[tuple[int, int], Any], distances: list[Any], is_known: Any) -> Any:
    """Return the squared Mahalanobis distance, by LAPACK."""
    size, count = len(distances), np.size(distances[0])
    matrix = np.empty((count, size, size))
    for (i, j), variance in variances.items():
        matrix[:, i, j] = matrix[:, j, i] = variance
    # The covariance of a model without enough records may have no inverse.
    matrix[~np.atleast_1d(is_known)] = np.eye(size)
    distance = np.stack([np.atleast_1d(one) for one in distances], axis=1)
    found = np.linalg.solve(matrix, distance[:, :, None])[:, :, 0]
    squared = np.zeros(count)
    for place in range(size):
        squared = squared + distance[:, place] * found[:, place]
    return squared if np.ndim(distances[0]) else squared[0]


class Histogram(Learner):
    """How many values of a field lie between given bounds.

    The score is the share of the values so far that lie in the bin of a value or below it.

    >>> ages = Histogram("age", [18, 65])
    >>> [int(count) for count in ages.learn(ages.start(), {"age": 30}).values()]
    [0, 1, 0]

    Args:
        feature: the field.
        bounds: the largest value of each bin but the last, ascending.

    """

    def __init__(self, feature: str, bounds: Sequence[float]) -> None:
        super().__init__(feature)
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise SchemaError(f"The bounds of a histogram ascend, without repetitions; these are {bounds}.")
        self.bounds: Final = np.array(bounds, float)
        self._bins: Final = [f"up_to_{bound:g}".replace("-", "minus_") for bound in bounds] + ["beyond"]
        if len(set(self._bins)) != len(self._bins):
            raise SchemaError(f"Bounds of a histogram differ in their first six digits; these are {bounds}.")

    def weight_types(self) -> Mapping[str, type[int | float]]:
        """Return the types of the weights: a number for each bin."""
        return dict.fromkeys(self._bins, int)

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more value."""
        found = np.searchsorted(self.bounds, record[self.features[0]], side="left")
        return {name: weights[name] + (found == place) * 1 for place, name in enumerate(self._bins)}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the share of values in the bin or below."""
        found = np.searchsorted(self.bounds, record[self.features[0]], side="left")
        below: Any = 0.0
        count: Any = 0.0
        for place, name in enumerate(self._bins):
            below = below + np.where(found >= place, weights[name], 0)
            count = count + weights[name]
        return below / np.maximum(count, 1)


def _in_deviations(distance: Any, variance: Any) -> Any:
    """Return a distance in standard deviations; 0 without any variance."""
    return np.where(variance > 0, distance / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)
