"""Operator state: the lists of a step without a key, one per part."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from penstock.errors import StateError
from penstock.state.lists import BoundListState, CheckedListState, ListState
from penstock.state.values import BoundState

__all__ = ["OperatorListState", "PartListState"]

T = TypeVar("T")


class PartListState(ListState[T], Generic[T]):
    """The base of operator states: their lists belong to parts, not to keys, and never expire."""

    by_key: ClassVar[bool] = False

    @overload
    def __init__(self, item_type: type[T]) -> None: ...
    @overload
    def __init__(self: PartListState[Any], item_type: Any) -> None: ...
    def __init__(self, item_type: Any) -> None:
        super().__init__(item_type)


class OperatorListState(PartListState[T], Generic[T]):
    """A list for each part of a step without a key.

    All records of a source partition belong to the same part; several source partitions may share a part. When a job
    starts with another number of tasks, whole parts move between tasks, so every item is kept exactly once. The methods
    are those of `ListState`, in `process_record` and in `process_batch`.

    >>> class Pairs(ProcessFunction):
    ...     waiting = OperatorListState(str)
    ...     def process_record(self, record, ctx):
    ...         self.waiting.add(record.page)
    ...         if len(self.waiting) == 2:
    ...             yield Pair(*self.waiting)
    ...             self.waiting.clear()

    Args:
        item_type: the type of the items, as for `ValueState`.

    """


class OneList(BoundState):
    """Mixin for a state that is a single list and not a column."""

    __slots__ = ()

    def columns(self) -> NoReturn:
        raise self._no_columns()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> NoReturn:  # noqa: ARG002  # as declared
        raise self._no_columns()

    def _no_columns(self) -> StateError:
        return StateError(
            f"The state {self.name!r} is a single list, not a column. Use get, add, add_all, set and clear in "
            "process_batch, too."
        )


class _BoundOperatorListState(OneList, BoundListState):
    """The list of a part at run time."""

    __slots__ = ()


class _CheckedOperatorListState(OneList, CheckedListState):
    """The list of a part that checks at once whether new items can be stored."""

    __slots__ = ()


OperatorListState.run_time = (_BoundOperatorListState, _CheckedOperatorListState)
