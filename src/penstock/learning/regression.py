"""Regressions: weights of fields that are moved a step towards each record, by stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from penstock.errors import SchemaError
from penstock.learning.learner import Learner, Numbers

__all__ = ["LinearRegression", "LogisticRegression"]


class LinearRegression(Learner):
    """A number that depends linearly on fields. The score is the expected number.

    >>> trips = LinearRegression("km", target="minutes", rate=0.1)
    >>> weights = trips.learn(trips.start(), {"km": 1.0, "minutes": 2.0})
    >>> trips.score(weights, {"km": 1.0})
    0.4

    Args:
        features: the fields by which to predict. They should have a similar scale, about 1.
        target: the field to predict.
        rate: the size of a step.
        decay: which share of each weight but the bias is forgotten with a record.

    """

    def __init__(self, *features: str, target: str, rate: float = 0.01, decay: float = 0.0) -> None:
        super().__init__(*features, targets=(target,))
        if not rate > 0 or not 0 <= decay < 1:
            raise SchemaError(
                f"The rate of a regression is above 0 and its decay from 0 to below 1, not {rate} and {decay}."
            )
        self.rate: Final = rate
        self.decay: Final = decay

    def weight_types(self) -> Mapping[str, type[int | float]]:
        """Return the types of the weights: the number of records, the bias, and one for each field."""
        return {"count": int, "bias": float, **{f"of_{name}": float for name in self.features}}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the expected number."""
        return self._linear(weights, record)

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return the weights after one more record."""
        step = self.rate * (record[self.targets[0]] - self.score(weights, record))
        found = {"count": weights["count"] + 1, "bias": weights["bias"] + step}
        for name in self.features:
            found[f"of_{name}"] = weights[f"of_{name}"] * (1 - self.decay) + step * record[name]
        return found

    def _linear(self, weights: Numbers, record: Numbers) -> Any:
        found = weights["bias"]
        for name in self.features:
            found = found + weights[f"of_{name}"] * record[name]
        return found


class LogisticRegression(LinearRegression):
    """The probability that a field is 1 and not 0, by fields. The score is this probability.

    Args:
        features: as for `LinearRegression`.
        target: the field to predict, 0 or 1, or a boolean.
        rate: as for `LinearRegression`.
        decay: as for `LinearRegression`.

    """

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the probability."""
        # Beyond these the exponential leaves the range of floats, and the probability is 0 or 1.
        return 1.0 / (1.0 + np.exp(-np.clip(self._linear(weights, record), -700.0, 700.0)))
