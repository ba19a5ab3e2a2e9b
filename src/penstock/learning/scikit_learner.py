"""Scikit-learn: estimators with `partial_fit`, which learn from a fixed number of records at a time."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from penstock.errors import SchemaError
from penstock.learning.document_reader import read_model
from penstock.learning.document_writer import write_model
from penstock.learning.model_learner import Label, ModelLearner, Score

__all__ = ["ScikitLearn"]

_WAITING: Final = "waiting"


@dataclass
class _Estimator:
    """An estimator, and the records that it has not learned yet."""

    estimator: Any
    is_fitted: bool = False
    waiting: list[list[Any]] = field(default_factory=list)


class ScikitLearn(ModelLearner):
    """An estimator of scikit-learn per key that has `partial_fit`: its fitted attributes are state, without pickle.

    >>> import penstock as ps
    >>> from sklearn.linear_model import SGDRegressor
    >>> class Trips(ps.ProcessFunction):
    ...     minutes = ps.LearnedState(ps.ScikitLearn(SGDRegressor(random_state=1), "km", target="minutes"))
    ...     def process_record(self, record, ctx):
    ...         yield {"line": record.line, "expected": self.minutes.learn(record)}

    Each call of `partial_fit` gets exactly `batch` records of a key, in their order, wherever micro-batches are cut;
    until then they wait in the state.

    The score is the prediction for regressors; for classifiers the probability of the last class, or the decision
    function where there are no probabilities (with more than two classes the place of the predicted one in `classes`);
    the distance to the nearest centre for clusters; the decision function for detectors of outliers; and the length of
    the transformed record for transformers. `score` may compute another.

    Args:
        estimator: the estimator, not fitted. Give `random_state` a number where there is one.
        features: the fields of a record with its numbers.
        target: the field that it learns to predict.
        classes: the values of the target of a classifier, by default False and True.
        batch: how many records of a key are learned together.
        score: what to return as the score of a record, from an estimator and the features by name.

    Raises SchemaError for an estimator that cannot be stored without pickle; docs/learning_models.md lists those that
    can.

    """

    package: ClassVar = "sklearn"

    def __init__(
        self,
        estimator: Any,
        *features: str,
        target: str | None = None,
        classes: Sequence[Label] | None = None,
        batch: int = 1,
        score: Score | None = None,
    ) -> None:
        if not hasattr(estimator, "partial_fit") or isinstance(estimator, type):
            raise SchemaError(f"ScikitLearn takes an estimator with partial_fit, not {estimator!r}.")
        if batch < 1:
            raise SchemaError(f"ScikitLearn learns from a batch of at least 1 record, not {batch}.")
        self.batch: Final = batch
        kind = importlib.import_module("sklearn.base")
        is_classifier = kind.is_classifier(estimator)
        if (is_classifier or kind.is_regressor(estimator)) != (target is not None):
            need = "learns without a target" if target is not None else "needs a target"
            raise SchemaError(
                f"{type(estimator).__name__} {need}: ScikitLearn(estimator, 'field', target='field')."
            )
        if is_classifier and classes is None:
            classes = (False, True)
        if not is_classifier and classes is not None:
            raise SchemaError(f"{type(estimator).__name__} is not a classifier, so it has no classes.")
        # Its checks in each call cost more than learning; the values are checked already.
        self._relaxed: Final = importlib.import_module("sklearn").config_context
        super().__init__(estimator, features, target, classes=classes, texts=(), score=score)

    @property
    def records_at_once(self) -> int:
        """How many records of a key are learned together."""
        return self.batch

    def start(self) -> Any:
        """Return an estimator that has learned nothing."""
        return _Estimator(copy.deepcopy(self.model))

    def shown(self, model: Any) -> Any:
        """Return the estimator."""
        return model.estimator

    def learn_one(self, model: Any, features: Mapping[str, Any], target: Any) -> None:
        """Let an estimator learn a record with those that wait, or let the record wait too."""
        model.waiting.append([float(value) for value in features.values()] + [target])
        if len(model.waiting) < self.batch:
            return
        rows = np.array([row[:-1] for row in model.waiting], np.float64)
        targets = [row[-1] for row in model.waiting]
        with self._relaxed(assume_finite=True, skip_parameter_validation=True):
            if self.classes is not None:
                places = np.array([self.classes.index(label) for label in targets])
                model.estimator.partial_fit(rows, places, classes=np.arange(len(self.classes)))
            elif self.target is not None:
                model.estimator.partial_fit(rows, np.array(targets, np.float64))
            else:
                model.estimator.partial_fit(rows)
        model.waiting.clear()
        model.is_fitted = True

    def score_one(self, model: Any, features: Mapping[str, Any]) -> float:
        """Return the score of a record."""
        if not model.is_fitted:
            return float("nan")
        if self.own_score is not None:
            return float(self.own_score(model.estimator, features))
        row = np.array([[float(value) for value in features.values()]])
        with self._relaxed(assume_finite=True, skip_parameter_validation=True):
            return self._score(model.estimator, row)

    def _score(self, estimator: Any, row: Any) -> float:
        if self.classes is not None:
            if len(self.classes) > 2:
                return float(estimator.predict(row)[0])
            if hasattr(estimator, "predict_proba"):
                return float(estimator.predict_proba(row)[0, 1])
            return float(estimator.decision_function(row)[0])
        if self.target is not None:
            return float(estimator.predict(row)[0])
        if hasattr(estimator, "cluster_centers_"):
            return float(estimator.transform(row).min())
        if hasattr(estimator, "decision_function"):
            return float(estimator.decision_function(row)[0])
        return float(np.linalg.norm(estimator.transform(row)))

    def weight_types(self) -> Mapping[str, Any]:
        """Return the types of the columns by name, with one for the records that wait."""
        return {**super().weight_types(), **({_WAITING: str} if self.batch > 1 else {})}

    def document(self, model: Any) -> Any:
        """Return the learned parts of an estimator as JSON, without the records that wait."""
        return write_model(model.estimator, self.fresh.estimator, self.package)

    def write(self, model: Any) -> dict[str, Any]:
        """Return an estimator as columns."""
        found = super().write(model)
        if self.batch > 1:
            found[_WAITING] = json.dumps(model.waiting, separators=(",", ":")) if model.waiting else None
        return found

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return the estimator of columns."""
        estimator = read_model(self.columns.join(values), self.fresh.estimator, self.package)
        waiting = json.loads(values.get(_WAITING) or "[]")
        return _Estimator(estimator, _is_fitted(estimator, self.fresh.estimator), waiting)


def _is_fitted(estimator: Any, fresh: Any) -> bool:
    """Return whether an estimator has more attributes than a fresh one."""
    return bool(vars(estimator).keys() - vars(fresh).keys())
