"""Learners: models whose weights sum up the records seen so far, and score the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from penstock.errors import SchemaError

__all__ = ["Learner", "Numbers"]

Numbers: TypeAlias = Mapping[str, Any]
"""Numbers by name: NumPy columns of equal length, or single numbers of NumPy, which give the same bits."""


class Learner:
    """A model that learns from one record at a time. Its weights are numbers with names, which people can read.

    A subclass declares its weights, and computes element by element, with operators and NumPy's functions, since
    it gets the weights of many keys as columns and those of one key as single numbers:

    >>> class Mean(Learner):
    ...     weights = {"count": int, "mean": float}
    ...     def learn(self, weights, record):
    ...         count = weights["count"] + 1
    ...         mean = weights["mean"] + (record["celsius"] - weights["mean"]) / count
    ...         return {"count": count, "mean": mean}
    ...     def score(self, weights, record):
    ...         return record["celsius"] - weights["mean"]
    >>> mean = Mean("celsius")
    >>> mean.learn(mean.start(), {"celsius": 20.0})
    {'count': 1, 'mean': 20.0}

    Args:
        features: the fields of a record by which it is scored.
        targets: the fields that are also needed to learn from it.

    """

    weights: ClassVar[Mapping[str, type[int | float]]] = {}

    def __init__(self, *features: str, targets: tuple[str, ...] = ()) -> None:
        if not features or len(set(features + targets)) != len(features + targets):
            raise SchemaError(
                f"{type(self).__name__} needs the names of different fields, and got {features + targets}."
            )
        self.features = features
        self.targets = targets

    def weight_types(self) -> Mapping[str, type[int | float]]:
        """Return the types of the weights by name; those of the class unless the features decide."""
        return self.weights

    def start(self) -> Numbers:
        """Return the weights of a model that has learned nothing: zeros."""
        return {name: kind(0) for name, kind in self.weight_types().items()}

    def score(self, weights: Numbers, record: Numbers) -> Any:
        """Return the score of records by models that have learned something."""
        raise NotImplementedError

    def learn(self, weights: Numbers, record: Numbers) -> Numbers:
        """Return all weights after one more record for each model. Must not change its arguments."""
        raise NotImplementedError
