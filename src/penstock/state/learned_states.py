"""Learned states: a model per key, which learns from the records of the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.learning.in_order import learn_in_order, score_all
from penstock.learning.learner import Learner
from penstock.state.ttl import Ttl
from penstock.state.values import BoundValueState, CheckedValueState, ValueState

__all__ = ["BoundLearnedState", "CheckedLearnedState", "LearnedState"]

_TYPES: Final[dict[Any, str]] = {int: "BIGINT", float: "DOUBLE"}

_Columns = dict[str, npt.NDArray[np.float64]]


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
    returns them as a record with a field for each weight, or None, and as columns they work as those of a
    `ValueState`. Learning depends on the order of a key's records alone, to the bit.

    Args:
        learner: the model, such as `Moments`, `Covariance`, `LinearRegression` or one of your own.
        ttl: how long the weights are kept after they were last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    def __init__(self, learner: Learner, *, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        if not isinstance(learner, Learner):
            raise SchemaError(
                f"A LearnedState takes a learner such as ps.Moments('celsius'), not {learner!r}."
            )
        fields = ", ".join(f"`{name}` {_type(learner, kind)} NOT NULL" for name, kind in _weights(learner))
        super().__init__(fields, ttl=ttl, renamed_from=renamed_from)
        self.learner = learner

    @overload
    def score(self, records: Any) -> float: ...
    @overload
    def score(self, records: Any, key_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
    def score(self, records: Any, key_indices: Any = None) -> Any:  # noqa: ARG002  # bound states override
        """Return the score of a record by the model of the current key; NaN if that has learned nothing.

        In `process_batch` give a record batch or a mapping of columns, and the key index of each record, and get a
        score for each.

        Raises ValueError if a feature is not a finite number.
        """
        raise self._outside()

    @overload
    def learn(self, records: Any) -> float: ...
    @overload
    def learn(self, records: Any, key_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
    def learn(self, records: Any, key_indices: Any = None) -> Any:  # noqa: ARG002  # as above
        """Let the model of the current key learn a record, and return the score that the record had before.

        In `process_batch` as `score`; several records of a key are learned one after the other.

        Raises ValueError if a feature or target is not a finite number.
        """
        raise self._outside()


class BoundLearnedState(BoundValueState):
    """A learned state at run time."""

    __slots__ = ("_learner",)

    def describe(self, declared: LearnedState) -> None:
        """Take over the declaration."""
        self._learner = declared.learner

    def score(self, records: Any, key_indices: npt.NDArray[np.int64] | None = None) -> Any:
        """Implement the declared method."""
        features = self._learner.features
        if key_indices is None:
            held = self.get()
            if held is None:
                return float("nan")
            with np.errstate(all="ignore"):
                return float(self._learner.score(self._numbers(held), _record(records, features)))
        columns = self.columns()
        with np.errstate(all="ignore"):
            return score_all(
                self._learner,
                columns.present,
                self._weights(columns),
                key_indices,
                _columns(records, features, len(key_indices)),
            )

    def learn(self, records: Any, key_indices: npt.NDArray[np.int64] | None = None) -> Any:
        """Implement the declared method."""
        wanted = self._learner.features + self._learner.targets
        if key_indices is None:
            return self._learn(_record(records, wanted))
        columns = self.columns()
        with np.errstate(all="ignore"):
            learned = learn_in_order(
                self._learner,
                columns.present,
                self._weights(columns),
                key_indices,
                _columns(records, wanted, len(key_indices)),
            )
        self.put(learned.keys, learned.weights)
        return learned.scores

    def _learn(self, record: Mapping[str, np.float64]) -> float:
        held = self.get()
        score = float("nan")
        weights = self._learner.start() if held is None else self._numbers(held)
        with np.errstate(all="ignore"):
            if held is not None:
                score = float(self._learner.score(weights, record))
            found = self._learner.learn(weights, record)
        kinds = self._learner.weight_types()
        self.set(self._exact(**{name: kind(found[name]) for name, kind in kinds.items()}))
        return score

    def _numbers(self, held: Any) -> dict[str, Any]:
        kinds = self._learner.weight_types()
        return {name: _SINGLE[kind](getattr(held, name)) for name, kind in kinds.items()}

    def _weights(self, columns: Any) -> dict[str, npt.NDArray[Any]]:
        return {name: columns[name] for name in self._learner.weight_types()}


class CheckedLearnedState(BoundLearnedState, CheckedValueState):
    """A learned state that checks at once whether its weights can be stored."""

    __slots__ = ()


LearnedState.run_time = (BoundLearnedState, CheckedLearnedState)

_SINGLE: Final[dict[Any, Any]] = {int: np.int64, float: np.float64}


def _weights(learner: Learner) -> list[tuple[str, Any]]:
    weights = list(learner.weight_types().items())
    if not weights:
        raise SchemaError(f"{type(learner).__name__} has no weights; name them in its attribute `weights`.")
    return weights


def _type(learner: Learner, kind: Any) -> str:
    if kind not in _TYPES:
        raise SchemaError(f"The weights of {type(learner).__name__} are int or float, not {kind!r}.")
    return _TYPES[kind]


def _record(record: Any, names: tuple[str, ...]) -> dict[str, np.float64]:
    """Return the numbers of a record by name."""
    get = record.get if isinstance(record, Mapping) else lambda name: getattr(record, name)
    found = {}
    for name in names:
        value = get(name)
        number = np.float64(np.nan if value is None else value)
        if not np.isfinite(number):
            raise ValueError(f"the model needs a finite number in the field {name!r}, and got {value!r}")
        found[name] = number
    return found


def _columns(records: Any, names: tuple[str, ...], count: int) -> _Columns:
    """Return the numbers of records as columns by name."""
    found = {}
    for name in names:
        column = records.column(name) if isinstance(records, pa.RecordBatch) else records[name]
        if isinstance(column, pa.Array):
            column = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        values = np.asarray(column, np.float64)
        if values.shape != (count,):
            raise ValueError(
                f"the column {name!r} has the shape {values.shape}, and there are {count} key indices"
            )
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise ValueError(f"the model needs finite numbers in the column {name!r}; row {row} has none")
        found[name] = values
    return found
