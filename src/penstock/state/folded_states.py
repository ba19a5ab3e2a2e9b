"""Folded states: added values are folded into one value per key; only that is kept."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, json_decoder, value_spec
from penstock.state.ttl import Ttl
from penstock.state.value_copies import Copier, copier_of
from penstock.state.values import BoundValueState, CheckedValueState, KeyedState, ValueState

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BoundAggregatingState",
    "BoundReducingState",
    "CheckedAggregatingState",
    "CheckedReducingState",
    "ReducingState",
]

T = TypeVar("T")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class ReducingState(ValueState[T]):
    """One value per key, into which each added value is folded.

    Declare it in the body of a process function:

    >>> class Hottest(ProcessFunction):
    ...     celsius = ReducingState(float, max)
    ...     def process_record(self, record, ctx):
    ...         self.celsius.add(record.celsius)

    `get` returns the folded value, or None if nothing was added; `set` replaces it. As columns it works like a
    `ValueState`.

    Args:
        value_type: as for `ValueState`.
        reduce_function: combines the folded value and an added value into one value of the same type. It may change
            its arguments in place, and must not return None. The first value that is added is stored unchanged.
        ttl: how long the value is kept after it was last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    @overload
    def __init__(
        self,
        value_type: type[T],
        reduce_function: Callable[[T, T], T],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: ReducingState[Any],
        value_type: Any,
        reduce_function: Callable[[Any, Any], Any],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        value_type: Any,
        reduce_function: Callable[[Any, Any], Any],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        super().__init__(value_type, ttl=ttl, renamed_from=renamed_from)
        self.reduce_function = reduce_function

    def spec(self) -> StateSpec:
        """Return how the state is stored: as its value."""
        if not callable(self.reduce_function):
            raise SchemaError(
                f"The reduce function {self.reduce_function!r} is not a function of two values."
            )
        return super().spec()

    def add(self, value: T) -> None:  # noqa: ARG002  # bound states override
        """Fold a value into the value of the current key.

        Raises TypeError if it is not of the declared type, or if the function returns None.
        """
        raise self._outside()


class AggregateFunction(Generic[V, A, R]):
    """A function that folds values into an accumulator, and computes a result from it.

    Values, accumulators and results may have different types. The type of values is taken from the annotation of
    `add`, the type of accumulators from that of `create_accumulator`.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Mean:
    ...     total: float = 0.0
    ...     count: int = 0
    >>> class MeanOf(AggregateFunction[float, Mean, float]):
    ...     def create_accumulator(self) -> Mean:
    ...         return Mean()
    ...     def add(self, value: float, accumulator: Mean) -> Mean:
    ...         return Mean(accumulator.total + value, accumulator.count + 1)
    ...     def get_result(self, accumulator: Mean) -> float:
    ...         return accumulator.total / accumulator.count
    ...     def merge(self, a: Mean, b: Mean) -> Mean:
    ...         return Mean(a.total + b.total, a.count + b.count)
    >>> mean = MeanOf()
    >>> mean.get_result(mean.add(2.0, mean.add(3.0, mean.create_accumulator())))
    2.5

    """

    def create_accumulator(self) -> A:
        """Return an empty accumulator."""
        raise NotImplementedError

    def add(self, value: V, accumulator: A, /) -> A:
        """Return the accumulator with one more value. It may be the same object, changed."""
        raise NotImplementedError

    def get_result(self, accumulator: A, /) -> R:
        """Return the result of an accumulator, which must not be changed."""
        raise NotImplementedError

    def merge(self, a: A, b: A, /) -> A:
        """Merge two accumulators, the values of `a` before those of `b`. May return either object, changed."""
        raise NotImplementedError


class AggregatingState(KeyedState, Generic[V, A, R]):
    """An accumulator per key, into which each added value is folded.

    Declare it in the body of a process function, with an `AggregateFunction`: `mean = AggregatingState(MeanOf())`.
    `get` returns the function's result for the accumulator, or None if nothing was added; `set` replaces the
    accumulator. As columns it works like a `ValueState` of the accumulator.

    Args:
        aggregate: an instance of the function.
        accumulator: the type of its accumulators, as for `ValueState`; by default the return annotation of
            `create_accumulator`.
        ttl: how long the accumulator is kept after it was last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    def __init__(
        self,
        aggregate: AggregateFunction[V, A, R],
        *,
        accumulator: Any = None,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        self.aggregate = aggregate
        self._accumulator = accumulator
        self.ttl = ttl
        self.renamed_from = renamed_from

    def spec(self) -> StateSpec:
        """Return how the state is stored: as its accumulator."""
        return value_spec(self._checked_name(), self.accumulator_type, self.ttl)

    @functools.cached_property
    def accumulator_type(self) -> Any:
        """The type of the accumulators, as declared or annotated."""
        kind = type(self.aggregate)
        if not isinstance(self.aggregate, AggregateFunction):
            given = self.aggregate
            hint = f"; give an instance: {given.__name__}()" if inspect.isclass(given) else ""
            raise SchemaError(f"{given!r} is not an AggregateFunction{hint}.")
        for name in ("create_accumulator", "add", "get_result"):
            if getattr(kind, name) is getattr(AggregateFunction, name):
                raise SchemaError(f"{kind.__name__} does not override {name}.")
        if self._accumulator is not None:
            return self._accumulator
        hint = _hints(kind.create_accumulator).get("return", Any)
        if hint is Any:
            raise SchemaError(
                f"{kind.__name__}.create_accumulator has no return annotation. Annotate it or add accumulator=."
            )
        return hint

    @property
    def set_type(self) -> Any:
        """The type to which a command sets the state: an accumulator."""
        return self.accumulator_type

    @property
    def added_type(self) -> StateSpec | None:
        """The type of added values by the annotation of `add`; None if the annotation cannot be checked."""
        method = type(self.aggregate).add
        hint = _hints(method).get(list(inspect.signature(method).parameters)[1], Any)
        try:
            return value_spec(self.name, hint)
        except SchemaError:
            return StateSpec(self.name, hint, pa.null(), None) if inspect.isclass(hint) else None

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode an accumulator from JSON. Raises msgspec.DecodeError when it does not fit."""
        try:
            return fill_defaults(json_decoder(self.accumulator_type).decode(data))
        except msgspec.DecodeError as e:
            kind = getattr(self.accumulator_type, "__name__", self.accumulator_type)
            raise msgspec.ValidationError(
                f"the state {self.name!r} is aggregating, so it is set to an accumulator ({kind}), not to a value: {e}"
            ) from None

    def add(self, value: V) -> None:  # noqa: ARG002  # bound states override
        """Fold a value into the accumulator of the current key.

        Raises TypeError if it is not of the annotated type, or if the function returns None.
        """
        raise self._outside()

    def get(self) -> R | None:
        """Return the result of the current key's accumulator, or None if it has none."""
        raise self._outside()

    def set(self, accumulator: A | None) -> None:  # noqa: ARG002  # as above
        """Replace the accumulator of the current key. Raises TypeError if it is not of the declared type."""
        raise self._outside()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:  # noqa: ARG002  # as above
        """In `process_batch`: set the accumulators of the keys in `slots`, like `ValueState.put`."""
        raise self._outside()


class BoundReducingState(BoundValueState):
    """A reducing state at run time. The function may change its argument, so it gets a copy."""

    __slots__ = ("_copied", "_reduce")

    def describe(self, declared: ReducingState[Any]) -> None:
        """Take over the declaration."""
        self._reduce = declared.reduce_function
        self._copied: Copier | None = copier_of(self._exact)

    def add(self, value: Any) -> None:
        """Implement the declared method."""
        if type(value) is not self._exact:
            value = fit_value(value, self._column.spec)
        before = self.get()
        if before is not None:
            if self._copied is not None:
                before = self._copied(before)
            value = self._reduce(before, value)
            if value is None:
                raise TypeError(f"the reduce function of the state {self.name!r} returned None")
        self.set(value)


class CheckedReducingState(BoundReducingState, CheckedValueState):
    """A reducing state that checks at once whether its value can be stored."""

    __slots__ = ()


ReducingState.run_time = (BoundReducingState, CheckedReducingState)


class BoundAggregatingState(BoundValueState):
    """An aggregating state at run time. The function may change its accumulator, so it gets a copy."""

    __slots__ = ("_added", "_aggregate", "_copied", "_exact_added")

    def describe(self, declared: AggregatingState[Any, Any, Any]) -> None:
        """Take over the declaration."""
        self._aggregate = declared.aggregate
        self._copied: Copier | None = copier_of(self._exact)
        self._added = declared.added_type
        self._exact_added = None if self._added is None else self._added.python_type

    def get(self) -> Any:  # noqa: D102  # as declared
        accumulator = super().get()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Implement the declared method."""
        if self._added is not None and type(value) is not self._exact_added:
            value = fit_value(value, self._added)
        accumulator = super().get()
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        if self._copied is not None:
            accumulator = self._copied(accumulator)
        accumulator = self._aggregate.add(value, accumulator)
        if accumulator is None:
            raise TypeError(f"the aggregate function of the state {self.name!r} returned None")
        self.set(accumulator)


class CheckedAggregatingState(BoundAggregatingState, CheckedValueState):
    """An aggregating state that checks at once whether its accumulator can be stored."""

    __slots__ = ()


AggregatingState.run_time = (BoundAggregatingState, CheckedAggregatingState)


def _hints(method: Any) -> dict[str, Any]:
    """Return the annotations of a method; an empty dict if they cannot be resolved."""
    try:
        return typing.get_type_hints(method)
    except (NameError, TypeError):
        return {}
