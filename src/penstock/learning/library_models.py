"""Library models: models of libraries that score and learn the records of their keys, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.learning.in_order import Learned
from penstock.learning.learner import Numbers
from penstock.learning.model_learner import ModelLearner
from penstock.learning.record_values import column_values, record_values

__all__ = ["LibraryModels"]

# Reading a model from its columns costs about as much as learning a record.
_MOST_KEPT: Final = 1024


class LibraryModels:
    """The models of the keys by a library, from weights as a record or as columns."""

    def __init__(self, learner: ModelLearner) -> None:
        self._learner = learner
        self._names = tuple(learner.weight_types())
        self._wanted = learner.features + (() if learner.target is None else (learner.target,))
        self._texts = learner.texts + (
            (learner.target,) if learner.target and _has_texts(learner.classes) else ()
        )
        # The models of weights that are the newest of their keys, by the weights' identity.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def model(self, held: Any) -> Any:
        """Return the model that has these weights, for inspection."""
        return self._learner.shown(self._model(held))

    def score(self, held: Any, record: Any) -> float:
        """Return the score of a record; NaN without weights."""
        features = record_values(record, self._learner.features, self._texts)
        if held is None:
            return float("nan")
        model = self._model(held)
        self._keep(held, model)
        return self._learner.score_one(model, features)

    def learn(self, held: Any, record: Any, make: Callable[..., Any], *, scored: bool) -> tuple[float, Any]:
        """Return the score of a record, NaN unless `scored`, and the weights after it, as `make` makes them."""
        found = record_values(record, self._wanted, self._texts)
        model = self._learner.start() if held is None else self._model(held)
        # If it fails on the record, the model is no longer that of the weights.
        self._kept.pop(id(held), None)
        score = self._learn(model, found, scored=scored and held is not None)
        weights = make(**self._learner.write(model))
        self._keep(weights, model)
        return score, weights

    def _model(self, held: Any) -> Any:
        known = self._kept.get(id(held))
        if known is not None:
            return known[1]
        return self._learner.read({name: getattr(held, name) for name in self._names})

    def score_columns(
        self, present: npt.NDArray[np.bool_], weights: Numbers, keys: npt.NDArray[np.int64], records: Any
    ) -> npt.NDArray[np.float64]:
        """Return the score of each record by the model of its key; NaN where there is none."""
        columns = column_values(records, self._learner.features, self._texts, len(keys))
        scores = np.full(len(keys), np.nan)
        for key, rows in _rows_by_key(keys):
            if present[key]:
                model = self._learner.read({name: weights[name][key] for name in self._names})
                for row in rows:
                    scores[row] = self._learner.score_one(model, {n: v[row] for n, v in columns.items()})
        return scores

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
        columns = column_values(records, self._wanted, self._texts, len(keys))
        scores = np.full(len(keys), np.nan)
        known: list[int] = []
        found: dict[str, list[Any]] = {name: [] for name in self._names}
        for key, rows in _rows_by_key(keys):
            is_present = bool(present[key])
            model = (
                self._learner.read({name: weights[name][key] for name in self._names})
                if is_present
                else self._learner.start()
            )
            for row in rows:
                record = {name: values[row] for name, values in columns.items()}
                scores[row] = self._learn(model, record, scored=scored and is_present)
                is_present = True
            known.append(key)
            for name, value in self._learner.write(model).items():
                found[name].append(value)
        return Learned(np.array(known, np.int64), found, scores)

    def _learn(self, model: Any, record: dict[str, Any], *, scored: bool) -> float:
        learner = self._learner
        features = {name: record[name] for name in learner.features}
        target = None if learner.target is None else learner.target_of(record[learner.target])
        score = learner.score_one(model, features) if scored else float("nan")
        learner.learn_one(model, features, target)
        return score

    def _keep(self, held: Any, model: Any) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[id(held)] = (held, model)


def _has_texts(classes: tuple[Any, ...] | None) -> bool:
    return classes is not None and all(type(label) is str for label in classes)


def _rows_by_key(keys: npt.NDArray[np.int64]) -> Any:
    """Return the keys in order, each with the rows of its records in order."""
    order = np.argsort(keys, kind="stable")
    found, begins = np.unique(keys[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)][: len(found)]
    rows = order.tolist()
    return (
        (key, rows[begin:end]) for key, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True)
    )
