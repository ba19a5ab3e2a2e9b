"""Column aggregates: aggregates of a field that windows keep as columns as well as one by one, to the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.folded_states import AggregateFunction

__all__ = ["NEW", "ColumnAggregate", "HeldColumns", "without_empty"]

NEW: Final = -1
"""In place of the row of an accumulator: one of no values."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

A = TypeVar("A")
R = TypeVar("R")


class HeldColumns(Protocol):
    """The accumulators of many windows, a row for each."""

    @classmethod
    def of(cls, stored: pa.Array) -> Self:
        """Accumulators as they are stored; where there is none, one of no values."""

    def take(self, rows: Ints) -> Self:
        """Those of some rows, in the order of `rows`, in which NEW may stand as well."""

    def to_arrow(self, kind: pa.DataType, holds: Mask) -> pa.Array:
        """As they are stored, but for those of windows that hold nothing."""


class ColumnAggregate(AggregateFunction[Any, A, R]):
    """An aggregate of a field; without a field, of the records themselves.

    What the columns come to is, to the bit, what `add` and `get_result` make of the records one by one.
    """

    held: ClassVar[type[HeldColumns]]
    field: str | None

    def values(self, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, npt.NDArray[Any]] | None:
        """Which records have a value, and the values, anything where there is none; None when it is not for columns."""
        raise NotImplementedError

    def add_all(self, held: Any, places: Ints, values: npt.NDArray[Any]) -> Any:
        """The accumulators with more values, each for the row in its place; may be the same, changed."""
        raise NotImplementedError

    def results(self, held: Any) -> list[pa.Array]:
        """What `get_result` makes of the accumulators: the columns of its fields, or the one of its value."""
        raise NotImplementedError


def without_empty(values: npt.NDArray[Any], is_empty: Mask) -> pa.Array:
    """Values some of which are nulls, under which there is nothing, as in columns of Python values."""
    return pa.array(np.where(is_empty, values.dtype.type(0), values), mask=is_empty)
