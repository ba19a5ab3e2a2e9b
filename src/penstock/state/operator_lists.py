"""Operator state: lists of a step without a key, one for each of its parts."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from penstock.errors import StateError
from penstock.state.lists import BoundListState, CheckedListState, ListState
from penstock.state.values import BoundState, BoundValueState, CheckedValueState

__all__ = ["OperatorListState"]

T = TypeVar("T")


class OperatorListState(ListState[T], Generic[T]):
    """A list for each part of a step without a key.

    The records of a source partition belong to one part, which many source partitions may share. When a job starts with
    another number of tasks, whole parts move between tasks, so every item is kept exactly once. `item_type` is as for
    `ValueState`, and the methods are those of `ListState`, in `process_record` and in `process_batch`.

    >>> class Pairs(ProcessFunction):
    ...     waiting = OperatorListState(str)
    ...     def process_record(self, record, ctx):
    ...         self.waiting.add(record.page)
    ...         if len(self.waiting) == 2:
    ...             yield Pair(*self.waiting)
    ...             self.waiting.clear()
    """

    by_key: ClassVar[bool] = False

    @overload
    def __init__(self, item_type: type[T]) -> None: ...
    @overload
    def __init__(self: OperatorListState[Any], item_type: Any) -> None: ...
    def __init__(self, item_type: Any) -> None:
        super().__init__(item_type)

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:
        """The class of the state at work."""
        return _CheckedOperatorListState if issubclass(kind, CheckedValueState) else _BoundOperatorListState


class OneList(BoundState):
    """What is one list, and no column."""

    __slots__ = ()

    def columns(self) -> NoReturn:
        raise self._no_columns()

    def put(self, slots: npt.NDArray[np.int64], values: Any) -> NoReturn:  # noqa: ARG002  # as declared
        raise self._no_columns()

    def _no_columns(self) -> StateError:
        return StateError(
            f"The state {self.name!r} is one list and no column. Use get, add, add_all, set and clear in "
            "process_batch, too."
        )


class _BoundOperatorListState(OneList, BoundListState):
    """The list of a part at work."""

    __slots__ = ()


class _CheckedOperatorListState(OneList, CheckedListState):
    """The same, which tries at once whether what it gets can be stored."""

    __slots__ = ()
