"""Learned states: a model per key, which learns from the records of the key."""

from __future__ import annotations

from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from penstock.errors import SchemaError
from penstock.learning.elementwise_models import ElementwiseModels
from penstock.learning.learner import Learner
from penstock.learning.library_models import LibraryModels
from penstock.learning.model_learner import ModelLearner
from penstock.state.ttl import Ttl
from penstock.state.values import BoundValueState, CheckedValueState, ValueState

__all__ = ["BoundLearnedState", "CheckedLearnedState", "LearnedState"]

_TYPES: Final[dict[Any, str]] = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", str: "STRING"}


class LearnedState(ValueState[Any]):
    """The weights of a model per key, which learns from the records of its key.

    Declare it in the body of a process function, with a learner:

    >>> import penstock as ps
    >>> class Unusual(ps.ProcessFunction):
    ...     normal = ps.LearnedState(ps.Moments("celsius"))
    ...     def process_record(self, record, ctx):
    ...         if abs(self.normal.learn(record)) > 4:
    ...             yield record

    The weights are state like any other: exactly once, dumped as columns with names, set by commands, restored. `get`
    returns them as a record with a field for each weight, or None, and as columns they work like a `ValueState`.
    Learning depends on the order of a key's records alone, to the bit.

    Args:
        learner: the model, such as `Moments`, `Covariance`, `LinearRegression` or one of your own; or `River` or
            `ScikitLearn` with a model of these libraries.
        ttl: how long the weights are kept after they were last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    def __init__(
        self, learner: Learner | ModelLearner, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        if not isinstance(learner, Learner | ModelLearner):
            raise SchemaError(
                f"A LearnedState takes a learner such as ps.Moments('celsius'), not {learner!r}."
            )
        super().__init__(_fields(learner), ttl=ttl, renamed_from=renamed_from)
        self.learner = learner

    def model(self) -> Any:
        """Return the model of the current key for inspection, or None: the library's object, or the weights by name.

        Do not change it: only `learn` stores what it has learned.
        """
        raise self._outside()

    @overload
    def score(self, records: Any) -> float: ...
    @overload
    def score(self, records: Any, key_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
    def score(self, records: Any, key_indices: Any = None) -> Any:  # noqa: ARG002  # bound states override
        """Return the score of a record by the model of the current key; NaN if it has learned nothing.

        In `process_batch` give a record batch or a mapping of columns, and the key index of each record, and get a
        score for each.

        Raises ValueError if a feature is not a finite number.
        """
        raise self._outside()

    @overload
    def learn(self, records: Any, *, scored: bool = True) -> float: ...
    @overload
    def learn(
        self, records: Any, key_indices: npt.NDArray[np.int64], *, scored: bool = True
    ) -> npt.NDArray[np.float64]: ...
    def learn(self, records: Any, key_indices: Any = None, *, scored: bool = True) -> Any:  # noqa: ARG002  # as above
        """Let the model of the current key learn a record, and return the score that the record had before.

        In `process_batch` it works like `score`; several records of a key are learned one after the other. With
        `scored=False` the score is not computed, which takes less time, and is NaN.

        Raises ValueError if a feature or target is not a finite number.
        """
        raise self._outside()


class BoundLearnedState(BoundValueState):
    """A learned state at run time."""

    __slots__ = ("_models", "_names")

    def describe(self, declared: LearnedState) -> None:
        """Take over the declaration."""
        learner = declared.learner
        self._names = tuple(learner.weight_types())
        self._models: ElementwiseModels | LibraryModels = (
            LibraryModels(learner) if isinstance(learner, ModelLearner) else ElementwiseModels(learner)
        )

    def model(self) -> Any:
        """Implement the declared method."""
        held = self.get()
        return None if held is None else self._models.model(held)

    def score(self, records: Any, key_indices: npt.NDArray[np.int64] | None = None) -> Any:
        """Implement the declared method."""
        if key_indices is None:
            return self._models.score(self.get(), records)
        columns = self.columns()
        return self._models.score_columns(columns.present, self._weights(columns), key_indices, records)

    def learn(
        self, records: Any, key_indices: npt.NDArray[np.int64] | None = None, *, scored: bool = True
    ) -> Any:
        """Implement the declared method."""
        if key_indices is None:
            score, weights = self._models.learn(self.get(), records, self._exact, scored=scored)
            self.set(weights)
            return score
        columns = self.columns()
        learned = self._models.learn_columns(
            columns.present, self._weights(columns), key_indices, records, scored=scored
        )
        self.put(learned.keys, learned.weights)
        return learned.scores

    def _weights(self, columns: Any) -> dict[str, npt.NDArray[Any]]:
        return {name: columns[name] for name in self._names}


class CheckedLearnedState(BoundLearnedState, CheckedValueState):
    """A learned state that checks at once whether its weights can be stored."""

    __slots__ = ()


LearnedState.run_time = (BoundLearnedState, CheckedLearnedState)


def _fields(learner: Learner | ModelLearner) -> str:
    """Return the weights as the fields of a record type."""
    weights = learner.weight_types()
    if not weights:
        raise SchemaError(f"{type(learner).__name__} has no weights; name them in its attribute `weights`.")
    if isinstance(learner, ModelLearner):
        return ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in weights.items())
    for kind in weights.values():
        if kind not in (int, float):
            raise SchemaError(f"The weights of {type(learner).__name__} are int or float, not {kind!r}.")
    return ", ".join(f"`{name}` {_TYPES[kind]} NOT NULL" for name, kind in weights.items())
