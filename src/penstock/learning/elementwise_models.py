"""Elementwise models: the models of a learner that computes element by element, for one key or for many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.learning.in_order import Learned, learn_in_order, score_all
from penstock.learning.learner import Learner, Numbers
from penstock.learning.record_values import column_numbers, record_numbers

__all__ = ["ElementwiseModels"]

_SINGLE: Final[dict[Any, Any]] = {int: np.int64, float: np.float64}


class ElementwiseModels:
    """The models of the keys of a learner, from weights as a record or as columns."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kinds = learner.weight_types()
        self._wanted = learner.features + learner.targets

    def model(self, held: Any) -> Any:
        """Return the weights by name; they are the model."""
        return self._numbers(held)

    def score(self, held: Any, record: Any) -> float:
        """Return the score of a record; NaN without weights."""
        numbers = record_numbers(record, self._learner.features)
        if held is None:
            return float("nan")
        with np.errstate(all="ignore"):
            return float(self._learner.score(self._numbers(held), numbers))

    def learn(self, held: Any, record: Any, make: Callable[..., Any], *, scored: bool) -> tuple[float, Any]:
        """Return the score of a record, NaN unless `scored`, and the weights after it, as `make` makes them."""
        numbers = record_numbers(record, self._wanted)
        score = float("nan")
        weights = self._learner.start() if held is None else self._numbers(held)
        with np.errstate(all="ignore"):
            if scored and held is not None:
                score = float(self._learner.score(weights, numbers))
            found = self._learner.learn(weights, numbers)
        return score, make(**{name: kind(found[name]) for name, kind in self._kinds.items()})

    def score_columns(
        self, present: npt.NDArray[np.bool_], weights: Numbers, keys: npt.NDArray[np.int64], records: Any
    ) -> npt.NDArray[np.float64]:
        """Return the score of each record by the model of its key; NaN where there is none."""
        with np.errstate(all="ignore"):
            numbers = column_numbers(records, self._learner.features, len(keys))
            return score_all(self._learner, present, weights, keys, numbers)

    def learn_columns(
        self,
        present: npt.NDArray[np.bool_],
        weights: Numbers,
        keys: npt.NDArray[np.int64],
        records: Any,
        *,
        scored: bool,
    ) -> Learned:
        """Let the model of each key score its records, if `scored`, and learn them, one after the other."""
        with np.errstate(all="ignore"):
            numbers = column_numbers(records, self._wanted, len(keys))
            return learn_in_order(self._learner, present, weights, keys, numbers, scored=scored)

    def _numbers(self, held: Any) -> dict[str, Any]:
        return {name: _SINGLE[kind](getattr(held, name)) for name, kind in self._kinds.items()}
