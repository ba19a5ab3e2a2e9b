"""Folded states: values that come are folded into one value per key, and only that is kept."""

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
from penstock.state.state_spec import StateSpec, completed, fitted, json_decoder, value_spec
from penstock.state.ttl import Ttl
from penstock.state.value_copies import Copier, copier_of
from penstock.state.values import BoundState, BoundValueState, CheckedValueState, KeyedState, ValueState

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
    """One value per key, into which each value that is added is folded.

    Declare it in the body of a process function.

    >>> class Hottest(ProcessFunction):
    ...     celsius = ReducingState(float, max)
    ...     def process_record(self, record, ctx):
    ...         self.celsius.add(record.celsius)

    `get` gives what was folded so far, or None; `set` replaces it. As columns it is what a `ValueState` is.

    Args:
        value_type: as for `ValueState`.
        reduce_function: takes what was folded so far and a value, and returns the two as one value of the same type.
            The first value is taken as it is.
        ttl: how long the value is kept.

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
        """How the state is stored: as its value."""
        if not callable(self.reduce_function):
            raise SchemaError(
                f"The reduce function {self.reduce_function!r} is not a function of two values."
            )
        return super().spec()

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:
        """The class of the state at work."""
        return CheckedReducingState if issubclass(kind, CheckedValueState) else BoundReducingState

    def add(self, value: T) -> None:  # noqa: ARG002  # bound states override
        """Fold a value into that of the current key. TypeError when it is not of the declared type."""
        raise self._outside()


class AggregateFunction(Generic[V, A, R]):
    """How values are folded into an accumulator, and what comes of it.

    Values, accumulator and result may differ in type. Those of values and accumulators are what `add` and
    `create_accumulator` are annotated with.

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
        """An accumulator without any value."""
        raise NotImplementedError

    def add(self, value: V, accumulator: A, /) -> A:
        """The accumulator with one more value; may be the same one, changed."""
        raise NotImplementedError

    def get_result(self, accumulator: A, /) -> R:
        """What comes of an accumulator, which stays as it is."""
        raise NotImplementedError

    def merge(self, a: A, b: A, /) -> A:
        """Two accumulators as one, the values of `a` before those of `b`; may be one of the two, changed."""
        raise NotImplementedError


class AggregatingState(KeyedState, Generic[V, A, R]):
    """An accumulator per key, into which each value that is added is folded.

    Declare it in the body of a process function, with an `AggregateFunction`: `mean = AggregatingState(MeanOf())`.
    `get` gives what the function makes of the accumulator, or None; `set` replaces the accumulator. As columns it is
    what a `ValueState` of the accumulator is.

    Args:
        aggregate: the function.
        accumulator: the type of its accumulators, as for `ValueState`; without one, what `create_accumulator` is
            annotated to return.
        ttl: how long the accumulator is kept.

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
        """How the state is stored: as its accumulator."""
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
                f"{kind.__name__}.create_accumulator does not say what it returns. Annotate it or add accumulator=."
            )
        return hint

    @property
    def set_type(self) -> Any:
        """The type of what a command sets the state to: an accumulator."""
        return self.accumulator_type

    @property
    def added_type(self) -> StateSpec | None:
        """The type of what is added, as `add` is annotated; None when it says nothing that can be checked."""
        method = type(self.aggregate).add
        hint = _hints(method).get(list(inspect.signature(method).parameters)[1], Any)
        try:
            return value_spec(self.name, hint)
        except SchemaError:
            return StateSpec(self.name, hint, pa.null(), None) if inspect.isclass(hint) else None

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """An accumulator from JSON. msgspec.DecodeError when it is none."""
        try:
            return completed(json_decoder(self.accumulator_type).decode(data))
        except msgspec.DecodeError as e:
            kind = getattr(self.accumulator_type, "__name__", self.accumulator_type)
            raise msgspec.ValidationError(
                f"the state {self.name!r} is aggregating, so it is set to an accumulator ({kind}), not to a value: {e}"
            ) from None

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:
        """The class of the state at work."""
        return CheckedAggregatingState if issubclass(kind, CheckedValueState) else BoundAggregatingState

    def add(self, value: V) -> None:  # noqa: ARG002  # bound states override
        """Fold a value into the accumulator of the current key. TypeError when it is not of the annotated type."""
        raise self._outside()

    def get(self) -> R | None:
        """What comes of the accumulator of the current key, or None."""
        raise self._outside()

    def set(self, accumulator: A | None) -> None:  # noqa: ARG002  # as above
        """Replace the accumulator of the current key. TypeError when it is not of the declared type."""
        raise self._outside()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> None:  # noqa: ARG002  # as above
        """In `process_batch`: set the accumulators of the keys in `slots`, as `ValueState.put` does."""
        raise self._outside()


class BoundReducingState(BoundValueState):
    """A reducing state at work. The function may change what it is given, so it is given a copy."""

    __slots__ = ("_copied", "_reduce")

    def describe(self, declared: ReducingState[Any]) -> None:
        """Take over what was declared."""
        self._reduce = declared.reduce_function
        self._copied: Copier | None = copier_of(self._exact)

    def add(self, value: Any) -> None:
        """As declared."""
        if type(value) is not self._exact:
            value = fitted(value, self._column.spec)
        before = self.get()
        if before is not None:
            if self._copied is not None:
                before = self._copied(before)
            value = self._reduce(before, value)
            if value is None:
                raise TypeError(f"the reduce function of the state {self.name!r} returned None")
        self.set(value)


class CheckedReducingState(BoundReducingState, CheckedValueState):
    """A reducing state that tries at once whether what it comes to can be stored."""

    __slots__ = ()


class BoundAggregatingState(BoundValueState):
    """An aggregating state at work. The function may change the accumulator that it is given, so it is given a copy."""

    __slots__ = ("_added", "_aggregate", "_copied", "_exact_added")

    def describe(self, declared: AggregatingState[Any, Any, Any]) -> None:
        """Take over what was declared."""
        self._aggregate = declared.aggregate
        self._copied: Copier | None = copier_of(self._exact)
        self._added = declared.added_type
        self._exact_added = None if self._added is None else self._added.python_type

    def get(self) -> Any:  # noqa: D102  # as declared
        accumulator = super().get()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        """As declared."""
        if self._added is not None and type(value) is not self._exact_added:
            value = fitted(value, self._added)
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
    """An aggregating state that tries at once whether its accumulator can be stored."""

    __slots__ = ()


def _hints(method: Any) -> dict[str, Any]:
    """The annotations of a method; none when they cannot be resolved."""
    try:
        return typing.get_type_hints(method)
    except (NameError, TypeError):
        return {}
