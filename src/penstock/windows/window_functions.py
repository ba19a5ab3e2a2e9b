"""Window functions: what comes of the contents of a window, and how contents grow."""

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
    """What a window emits when it fires. Derive your own from it.

    >>> class Span(WindowFunction):
    ...     def process(self, key, records, ctx):
    ...         yield key, ctx.window.start, max(records) - min(records)

    A function is one object for all windows; what it keeps of a window until the window is cleaned up is `ctx.state`.

    Attributes:
        window_state: the type of `ctx.state`, a type or a schema as for `ValueState`; None when nothing is kept. Not
            for windows that merge.
        side_outputs: the side outputs that `ctx.side_output` emits to, each with its schema.

    """

    window_state: ClassVar[Any] = None
    side_outputs: ClassVar[Mapping[str, Any]] = {}

    def process(self, key: Any, records: Sequence[Any], ctx: WindowContext, /) -> Iterable[Any] | None:
        """Yield or return the records to emit for a window that fires.

        `records` are all that the window holds, in the order in which they came, or the one result of them where the
        window reduces or aggregates. Leave them as they are: the window may fire again.
        """
        raise NotImplementedError


class WindowContents:
    """How the contents of a window grow, and what comes of them.

    Attributes:
        folds: whether records are folded into one value as they come, else all are kept.
        function: the window function that is given what the window holds, or None.

    """

    folds: ClassVar[bool] = False

    def __init__(self, function: WindowFunction | None) -> None:
        if function is not None:
            _check_function(function)
        self.function = function

    def check(self, *, merges: bool, folds: bool) -> None:  # noqa: ARG002  # for those that fold
        """JobDefinitionError when these cannot be the contents of windows that merge; `folds`: records are not kept."""
        if merges and self.function is not None and self.function.window_state is not None:
            raise JobDefinitionError(
                f"{type(self.function).__name__} keeps a window_state, which windows that merge cannot have."
            )

    def add(self, held: Any, record: Any) -> Any:
        """What the window holds (None: nothing) and one more record as one value, where they are folded."""
        raise NotImplementedError

    def merged(self, held: Any, other: Any) -> Any:
        """What two windows hold as one value, where records are folded."""
        raise NotImplementedError

    def folded(self, records: list[Any]) -> Any:
        """What the window would hold had these records come, of which there may be none."""
        return records

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:
        """What the window emits: of all its records, or of what they were folded into."""
        raise NotImplementedError

    def _processed(self, key: Any, records: list[Any], ctx: WindowContext) -> list[Any]:
        if self.function is None:
            return records
        found = self.function.process(key, records, ctx)
        return [] if found is None else list(found)


class AllRecords(WindowContents):
    """Contents that are all records, for a window function."""

    def __init__(self, function: WindowFunction) -> None:
        _check_function(function)
        super().__init__(function)

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._processed(key, held, ctx)


class Reduced(WindowContents):
    """Contents that are reduced to one value of the records' type.

    The reduce function takes what was reduced so far and a record, and returns the two as one; the first record is
    taken as it is.
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
        self._copied: Copier | None = None

    def add(self, held: Any, record: Any) -> Any:  # noqa: D102  # as declared
        if held is None:
            return record
        # The function may change what it is given.
        if type(held) is not self._kind:
            self._kind = type(held)
            self._copied = copier_of(cast("Hashable", self._kind))
        if self._copied is not None:
            held = self._copied(held)
        found = self._reduce(held, record)
        if found is None:
            raise TypeError("the reduce function of the window returned None")
        return found

    def merged(self, held: Any, other: Any) -> Any:  # noqa: D102  # as declared
        return self.add(held, other)

    def folded(self, records: list[Any]) -> Any:  # noqa: D102  # as declared
        held = None
        for record in records:
            held = self.add(held, record)
        return held

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._processed(key, [] if held is None else [held], ctx)


class Aggregated(WindowContents):
    """Contents that are aggregated: an accumulator, whose result the window emits.

    Windows whose evictor leaves nothing have the result of an empty accumulator.

    Args:
        aggregate: the function.
        function: is given the one result, where there is one.
        accumulator: the type of accumulators; without one, what `create_accumulator` is annotated to return.

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
        self._copied = copier_of(self.accumulator_type)

    @property
    def result_type(self) -> Any:
        """The type of results, as `get_result` is annotated. JobDefinitionError when it is not."""
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
        elif self._copied is not None:
            # The function may change the accumulator, and a failed record must leave it as it was.
            held = self._copied(held)
        return self._checked(self.aggregate.add(record, held))

    def merged(self, held: Any, other: Any) -> Any:  # noqa: D102  # as declared
        if self._copied is not None:
            held, other = self._copied(held), self._copied(other)
        return self._checked(self.aggregate.merge(held, other))

    def folded(self, records: list[Any]) -> Any:  # noqa: D102  # as declared
        held = self.aggregate.create_accumulator()
        for record in records:
            held = self._checked(self.aggregate.add(record, held))
        return held

    def results(self, key: Any, held: Any, ctx: WindowContext) -> list[Any]:  # noqa: D102  # as declared
        return self._processed(key, [self.aggregate.get_result(held)], ctx)

    def _checked(self, held: Any) -> Any:
        if held is None:
            raise TypeError(f"the aggregate function {type(self.aggregate).__name__} returned None")
        return held


def _check_function(function: Any) -> None:
    """JobDefinitionError when it is not a window function that can run."""
    if inspect.isclass(function):
        raise JobDefinitionError(
            f"A window was given the class {function.__name__}; give an instance: {function.__name__}()."
        )
    if not isinstance(function, WindowFunction):
        raise JobDefinitionError(f"A window needs a WindowFunction, not {type(function).__name__}.")
    if type(function).process is WindowFunction.process:
        raise JobDefinitionError(f"{type(function).__name__} does not override process.")
