"""Model learners: a model of a library for each key, whose attributes are state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from penstock.errors import SchemaError
from penstock.learning.document_form import ClosedModelError
from penstock.learning.document_reader import read_model
from penstock.learning.document_writer import write_model
from penstock.learning.model_columns import ModelColumns, same_shape

__all__ = ["Label", "ModelLearner", "Score"]

Label = bool | int | float | str
Score = Callable[[Any, Mapping[str, Any]], float]

# The documents after these numbers of records of a probe show whether the shape has settled.
_PROBES: Final = (10, 20, 40)
_TEXTS: Final = ("a", "b", "c")


class ModelLearner:
    """The base of `River` and `ScikitLearn`: turns a model into columns, and columns into a model.

    The model that is given is code: its constructor's arguments are those of the job in any version. Everything else
    that its attributes hold after some records was learned, and is state.
    """

    package: ClassVar[str]
    """The package whose classes a model consists of."""

    def __init__(
        self,
        model: Any,
        features: Sequence[str],
        target: str | None,
        *,
        classes: Sequence[Label] | None,
        texts: Sequence[str],
        score: Score | None,
    ) -> None:
        self.model = model
        self.features: Final = tuple(features)
        self.target: Final = target
        self.texts: Final = tuple(texts)
        self.classes: Final = None if classes is None else tuple(classes)
        self.own_score: Final = score
        name = type(self).__name__
        targets = () if target is None else (target,)
        if not features or len({*features, *targets}) != len(features) + len(targets):
            raise SchemaError(f"{name} needs the names of different fields, and got {(*features, *targets)}.")
        if not set(texts) <= {*features}:
            raise SchemaError(f"{name} has texts={tuple(texts)}, which must be among its features.")
        if classes is not None and (target is None or len(set(classes)) != len(classes) or len(classes) < 2):
            raise SchemaError(f"The classes of {name} are two or more different values of its target.")
        if not type(model).__module__.startswith(f"{self.package}."):
            raise SchemaError(f"{name} takes a model of {self.package}, not {model!r}.")
        self._check_seeds(model)
        self.fresh: Final = self.start()
        self.columns: Final = self._settled_columns()

    # -- what a library does --

    def start(self) -> Any:
        """Return a model that has learned nothing."""
        return copy.deepcopy(self.model)

    def learn_one(self, model: Any, features: Mapping[str, Any], target: Any) -> None:
        """Let a model learn a record."""
        raise NotImplementedError

    def score_one(self, model: Any, features: Mapping[str, Any]) -> float:
        """Return the score of a record; NaN if the model has none yet."""
        raise NotImplementedError

    def shown(self, model: Any) -> Any:
        """Return a model as the object of its library."""
        return model

    # -- state --

    def weight_types(self) -> Mapping[str, Any]:
        """Return the types of the columns by name; all may be null."""
        return self.columns.types()

    def document(self, model: Any) -> Any:
        """Return the learned parts of a model as JSON. Raises ClosedModelError if they cannot be stored."""
        return write_model(model, self.fresh, self.package)

    def write(self, model: Any) -> dict[str, Any]:
        """Return a model as columns. Raises ClosedModelError, a ValueError, if it cannot be stored."""
        return self.columns.split(self.document(model))

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return the model of columns. Raises ClosedModelError if they cannot be one."""
        return read_model(self.columns.join(values), self.fresh, self.package)

    def target_of(self, value: Any) -> Any:
        """Return a target in the form that the model takes. Raises ValueError if it is not a target."""
        if self.classes is None:
            return value
        for label in self.classes:
            if label == value and (type(label) is bool) == (type(value) is bool):
                return label
        raise ValueError(
            f"the field {self.target!r} has {value!r}, which is none of the classes {self.classes}"
        )

    # -- what to expect of it --

    def _check_seeds(self, model: Any) -> None:
        for held in _objects_in(model, self.package, {}):
            for name in ("seed", "random_state"):
                if getattr(held, name, 0) is None:
                    raise SchemaError(
                        f"{type(held).__name__} draws other random numbers in each process. Give it a seed: {name}=1."
                    )

    def _settled_columns(self) -> ModelColumns:
        documents, again = self._probed(), self._probed()
        if documents != again:
            raise SchemaError(
                f"{type(self.model).__name__} learns by chance: the same records teach it different things. Choose a "
                "model with a seed."
            )
        is_settled = same_shape(documents[-2], documents[-1])
        return ModelColumns(documents[-1] if is_settled else None)

    def _probed(self) -> list[Any]:
        """Return the documents of a model after some records, and after more records."""
        chance = np.random.default_rng(1)
        model, found = self.start(), []
        name = type(self.model).__name__
        try:
            for at in range(_PROBES[-1] * self.records_at_once):
                numbers = chance.random(len(self.features)).tolist()
                features = {
                    field: _TEXTS[at % len(_TEXTS)] if field in self.texts else number
                    for field, number in zip(self.features, numbers, strict=True)
                }
                target = self.classes[at % len(self.classes)] if self.classes else sum(numbers)
                self.learn_one(model, features, target)
                if at + 1 in [count * self.records_at_once for count in _PROBES]:
                    found.append(self.document(model))
                    self.score_one(model, features)
                    if found[-1] != self.document(model):
                        raise SchemaError(
                            f"{name} changes when it scores a record, which is not stored. Let it only learn: "
                            "score=lambda model, record: 0.0"
                        )
        except ClosedModelError as e:
            raise SchemaError(
                f"{name} cannot be stored without pickle: {e}. Choose one from the table in docs/learning_models.md."
            ) from e
        except SchemaError:
            raise
        except Exception as e:
            raise SchemaError(f"{name} cannot learn records such as {features} and {target!r}: {e}") from e
        return found

    @property
    def records_at_once(self) -> int:
        """How many records of a key are learned together."""
        return 1


def _objects_in(value: Any, package: str, seen: dict[int, Any]) -> Any:
    """Yield the objects of the package that a value consists of."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, dict):
        for held in value.values():
            yield from _objects_in(held, package, seen)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _objects_in(held, package, seen)
    elif type(value).__module__.startswith(f"{package}."):
        yield value
        yield from _objects_in(getattr(value, "__dict__", {}), package, seen)
