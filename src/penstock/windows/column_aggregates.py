"""Column aggregates: aggregates of a field, computed on columns or record by record with the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.folded_states import AggregateFunction

__all__ = ["NEW", "ColumnAggregate", "HeldColumns", "mask_empty"]

NEW: Final = -1
"""Instead of a row number: an accumulator without values."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

A = TypeVar("A")
R = TypeVar("R")


class HeldColumns(Protocol):
    """The accumulators of many windows, one row each."""

    @classmethod
    def of(cls, stored: pa.Array) -> Self:
        """Read stored accumulators; a null becomes an accumulator without values."""

    def take(self, rows: Ints) -> Self:
        """Return the accumulators of some rows, in the order of `rows`, which may contain NEW."""

    def to_arrow(self, kind: pa.DataType, holds: Mask) -> pa.Array:
        """Return the stored form, with a null for each window that `holds` no records."""


class ColumnAggregate(AggregateFunction[Any, A, R]):
    """An aggregate of a field; without a field, of the records themselves.

    The columns must yield, to the bit, the same results as `add` and `get_result` do record by record.
    """

    held: ClassVar[type[HeldColumns]]
    field: str | None

    def values(self, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, npt.NDArray[Any]] | None:
        """Return a mask of the records with a value, and the values, arbitrary where there is none.

        None if columns cannot aggregate these records.
        """
        raise NotImplementedError

    def add_all(self, held: Any, places: Ints, values: npt.NDArray[Any]) -> Any:
        """Return the accumulators with more values, each for the row in `places`; may change and return `held`.

        None if columns cannot hold the result.
        """
        raise NotImplementedError

    def results(self, held: Any) -> list[pa.Array]:
        """Return the results of `get_result` for the accumulators: a column per field, or one of the value."""
        raise NotImplementedError


def mask_empty(values: npt.NDArray[Any], is_empty: Mask) -> pa.Array:
    """Return values with nulls where `is_empty`. The bytes under a null are zero, as in columns of Python values."""
    return pa.array(np.where(is_empty, values.dtype.type(0), values), mask=is_empty)
