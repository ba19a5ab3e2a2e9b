"""River: models of the River library, which learn from one record at a time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from penstock.errors import SchemaError
from penstock.learning.model_learner import Label, ModelLearner, Score

__all__ = ["River"]

_NAN: Final = float("nan")
_SAYS: Final = ("score_one", "predict_one", "get")


class River(ModelLearner):
    """A model of River per key. Its learned values are state, in named columns, without pickle.

    >>> import penstock as ps
    >>> from river import linear_model, preprocessing
    >>> class Trips(ps.ProcessFunction):
    ...     minutes = ps.LearnedState(
    ...         ps.River(preprocessing.StandardScaler() | linear_model.LinearRegression(), "km", target="minutes")
    ...     )
    ...     def process_record(self, record, ctx):
    ...         yield {"line": record.line, "expected": self.minutes.learn(record)}

    The score is that of `score_one` for detectors of anomalies, the prediction for regressors, for classifiers the
    probability of the last class (with more than two classes the place of the predicted one in `classes`), the value
    of a statistic, and NaN for other models, unless `score` computes one.

    Args:
        model: the model as it begins, which must not have learned anything. Give a seed to every part that takes one.
        features: the fields of a record that the model gets.
        target: the field that it learns to predict.
        classes: the values of the target of a classifier, by default False and True.
        texts: the features that are texts and not numbers.
        score: what to return as the score of a record, from a model and the features by name.

    Raises SchemaError for a model that cannot be stored without pickle; docs/learning_models.md lists those that can.

    """

    package: ClassVar = "river"

    def __init__(
        self,
        model: Any,
        *features: str,
        target: str | None = None,
        classes: Sequence[Label] | None = None,
        texts: Sequence[str] = (),
        score: Score | None = None,
    ) -> None:
        # A pipeline has the methods of all kinds of models; its last step says which one it is.
        last = model
        while isinstance(getattr(last, "steps", None), dict) and last.steps:
            last = next(reversed(last.steps.values()))
        is_classifier = hasattr(last, "predict_proba_one")
        if is_classifier and target is not None and classes is None:
            classes = (False, True)
        if not is_classifier and classes is not None:
            raise SchemaError(f"{type(model).__name__} is not a classifier, so it has no classes.")
        learn = getattr(last, "learn_one", None) or getattr(last, "update", None)
        if learn is None or inspect.isclass(model):
            raise SchemaError(f"River takes a model of river that has learn_one or update, not {model!r}.")
        required = _required(learn)
        # Statistics of two numbers get them one by one; other models get all features by name.
        self._takes_numbers = not hasattr(model, "learn_one") and len(features) == required
        needs_target = hasattr(last, "learn_one") and (required > 1 or getattr(model, "_supervised", False))
        if needs_target != (target is not None):
            need = "needs a target" if needs_target else "learns without a target"
            raise SchemaError(f"{type(model).__name__} {need}: River(model, 'field', target='field').")
        self._says: Final = next((name for name in _SAYS if hasattr(last, name)), None)
        self._scores_with_target: Final = self._says == "score_one" and _required(last.score_one) > 1
        super().__init__(model, features, target, classes=classes, texts=texts, score=score)

    def learn_one(self, model: Any, features: Mapping[str, Any], target: Any) -> None:
        """Let a model learn a record."""
        if self._takes_numbers:
            model.update(*features.values())
        elif not hasattr(model, "learn_one"):
            model.update(dict(features))
        elif self.target is None:
            model.learn_one(dict(features))
        else:
            model.learn_one(dict(features), target)

    def score_one(self, model: Any, features: Mapping[str, Any]) -> float:
        """Return the score of a record."""
        if self.own_score is not None:
            return float(self.own_score(model, features))
        given = dict(features)
        if self.classes is not None:
            chances = model.predict_proba_one(given)
            if len(self.classes) == 2:
                return float(chances.get(self.classes[1], 0.0 if chances else _NAN))
            return float(self.classes.index(max(chances, key=chances.get))) if chances else _NAN
        if self._scores_with_target or self._says is None:
            return _NAN
        if self._says == "get":
            return _number(model.get()) if self._takes_numbers else _NAN
        return _number(getattr(model, self._says)(given))


def _required(function: Any) -> int:
    """Return how many arguments a function must get."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else _NAN
