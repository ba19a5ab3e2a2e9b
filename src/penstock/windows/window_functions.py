"""Window functions: accumulate the contents of a window, and compute its results."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from penstock.errors import JobDefinitionError
from penstock.state.folded_states import AggregateFunction, AggregatingState
from penstock.state.value_copies import Copier, copier_of
from penstock.windows.contexts import WindowContext

__all__ = ["Aggregated", "AllRecords", "Reduced", "WindowContents", "WindowFunction"]


class WindowFunction:
    """A window function: computes the records that a window emits when it fires. Derive your own from it.

    >>> class Span(WindowFunction):
    ...     def process(self, key, records, ctx):
    ...         yield key, ctx.window.start, max(records) - min(records)

    One function object serves all windows. It keeps the state of a window, until the window is cleaned up, in
    `ctx.state`.

    Attributes:
        window_state: the type of `ctx.state`: a type or a schema as for `ValueState`; None if the function has no
            state. Not allowed for windows that merge.
        side_outputs: the side outputs that `ctx.side_output` emits to, each with its schema.

    """

    window_state: ClassVar[Any] = None
    side_outputs: ClassVar[Mapping[str, Any]] = {}

    def process(self, key: Any, records: Sequence[Any], ctx: WindowContext, /) -> Iterable[Any] | None:
        """Yield or return the records to emit for a window that fires.

        `records` are all records of the window, in the order of arrival, or their single result if the window reduces
        or aggregates. Do not modify them: the window may fire again.
        """
        raise NotImplementedError


class WindowContents:
    """The contents of windows: accumulates records and computes results.

    Attributes:
        folds: whether records are folded into one value as they arrive; else all are kept.
        function: the window function that receives the contents, or None.

    """

    folds: ClassVar[bool] = False

    def __init__(self, function: WindowFunction | None) -> None:
        if function is not None:
            _check_function(function)
        self.function = function

    def check(self, *, merges: bool, folds: bool) -> None:  # noqa: ARG002  # for those that fold
        """Raise JobDefinitionError if windows that merge cannot have these contents; `folds`: records are not kept."""
        if merges and self.function is not None and self.function.window_state is not None:
            raise JobDefinitionError(
                f"{type(self.function).__name__} keeps a window_state, which windows that merge cannot have."
            )

    def add(self, held: Any, record: Any) -> Any:
        """Return `held` (None: nothing) and one more record, folded into one value."""
        raise NotImplementedError

    def merge(self, held: Any, other: Any) -> Any:
        """Return the folded values of two windows, merged into one."""
        raise NotImplementedError

    def fold(self, records: list[Any]) -> Any:
        """Return the contents of a window with these records, possibly none."""
        return records

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:
        """Return the records that the window emits for `held`: all its records, or the value they were folded into."""
        raise NotImplementedError

    def _process(self, key: Any, records: list[Any], ctx: WindowContext) -> list[Any]:
        if self.function is None:
            return records
        found = self.function.process(key, records, ctx)
        return [] if found is None else list(found)


class AllRecords(WindowContents):
    """Contents that keep all records, for a window function."""

    def __init__(self, function: WindowFunction) -> None:
        _check_function(function)
        super().__init__(function)

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._process(key, held, ctx)


class Reduced(WindowContents):
    """Contents that reduce records to one value of their type.

    The reduce function takes the result so far and a record, and combines them into one. The first result is the first
    record.
    """

    folds = True

    def __init__(
        self, reduce_function: Callable[[Any, Any], Any], function: WindowFunction | None = None
    ) -> None:
        if not callable(reduce_function):
            raise JobDefinitionError(
                f"The reduce function of a window is a function of two records, not {reduce_function!r}."
            )
        super().__init__(function)
        self._reduce = reduce_function
        self._kind: type | None = None
        self._copy: Copier | None = None

    def add(self, held: Any, record: Any) -> Any:  # noqa: D102  # as declared
        if held is None:
            return record
        # The function may modify its arguments.
        if type(held) is not self._kind:
            self._kind = type(held)
            self._copy = copier_of(cast("Hashable", self._kind))
        if self._copy is not None:
            held = self._copy(held)
        found = self._reduce(held, record)
        if found is None:
            raise TypeError("the reduce function of the window returned None")
        return found

    def merge(self, held: Any, other: Any) -> Any:  # noqa: D102  # as declared
        return self.add(held, other)

    def fold(self, records: list[Any]) -> Any:  # noqa: D102  # as declared
        held = None
        for record in records:
            held = self.add(held, record)
        return held

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._process(key, [] if held is None else [held], ctx)


class Aggregated(WindowContents):
    """Contents that aggregate records into an accumulator, whose result the window emits.

    If the evictor keeps no records, the result is that of an empty accumulator.

    Args:
        aggregate: the aggregate function.
        function: the window function that receives the single result, or None.
        accumulator: the type of accumulators; defaults to the return annotation of `create_accumulator`.

    """

    folds = True

    def __init__(
        self,
        aggregate: AggregateFunction[Any, Any, Any],
        function: WindowFunction | None = None,
        *,
        accumulator: Any = None,
    ) -> None:
        super().__init__(function)
        self.accumulator_type = AggregatingState(aggregate, accumulator=accumulator).accumulator_type
        self.aggregate = aggregate
        self._copy = copier_of(self.accumulator_type)

    @property
    def result_type(self) -> Any:
        """The type of results, as annotated on `get_result`. Raises JobDefinitionError without an annotation."""
        kind = type(self.aggregate)
        try:
            found = typing.get_type_hints(kind.get_result).get("return", Any)
        except (NameError, TypeError):
            found = Any
        if found is Any or isinstance(found, typing.TypeVar):
            raise JobDefinitionError(
                f"{kind.__name__}.get_result does not say what it returns. Annotate it, or add output=."
            )
        return found

    def check(self, *, merges: bool, folds: bool) -> None:  # noqa: D102  # as declared
        super().check(merges=merges, folds=folds)
        if merges and folds and type(self.aggregate).merge is AggregateFunction.merge:
            raise JobDefinitionError(
                f"{type(self.aggregate).__name__} does not override merge, which windows that merge need."
            )

    def add(self, held: Any, record: Any) -> Any:  # noqa: D102  # as declared
        if held is None:
            held = self.aggregate.create_accumulator()
        elif self._copy is not None:
            # The function may modify the accumulator, which a failed record must leave unchanged.
            held = self._copy(held)
        return self._not_none(self.aggregate.add(record, held))

    def merge(self, held: Any, other: Any) -> Any:  # noqa: D102  # as declared
        if self._copy is not None:
            held, other = self._copy(held), self._copy(other)
        return self._not_none(self.aggregate.merge(held, other))

    def fold(self, records: list[Any]) -> Any:  # noqa: D102  # as declared
        held = self.aggregate.create_accumulator()
        for record in records:
            held = self._not_none(self.aggregate.add(record, held))
        return held

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._process(key, [self.aggregate.get_result(held)], ctx)

    def _not_none(self, held: Any) -> Any:
        if held is None:
            raise TypeError(f"the aggregate function {type(self.aggregate).__name__} returned None")
        return held


def _check_function(function: Any) -> None:
    """Raise JobDefinitionError when it is not a usable window function."""
    if inspect.isclass(function):
        raise JobDefinitionError(
            f"A window was given the class {function.__name__}; give an instance: {function.__name__}()."
        )
    if not isinstance(function, WindowFunction):
        raise JobDefinitionError(f"A window needs a WindowFunction, not {type(function).__name__}.")
    if type(function).process is WindowFunction.process:
        raise JobDefinitionError(f"{type(function).__name__} does not override process.")
