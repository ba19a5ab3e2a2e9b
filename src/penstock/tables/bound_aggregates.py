"""Bound aggregates: aggregates of the fields of records, with their accumulators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import JobDefinitionError
from penstock.records.types import Field
from penstock.tables.accumulators import (
    Accumulator,
    CountValues,
    EstimatedDistinct,
    Extreme,
    FirstValue,
    Given,
    SumOf,
)
from penstock.tables.aggregate import Aggregate
from penstock.tables.multisets import MultisetAggregate
from penstock.windows.value_hashes import can_be_hashed

__all__ = ["BoundAggregate", "bind_aggregate"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate of a field of records. `accumulator` is None if it counts all rows of the group.

    `order` is the field that orders first and last values; None if they have the order of arrival.
    """

    name: str
    argument: str | None
    order: str | None
    accumulator: Accumulator | None

    @property
    def result(self) -> Field:
        """The field of the result."""
        if self.accumulator is None:
            return Field(self.name, int, pa.int64(), nullable=False)
        return self.accumulator.result

    def given(self, batch: pa.RecordBatch, slots: Ints, signs: Ints | None) -> Given:
        """Return the argument of the aggregate in some records, whose groups are `slots`."""
        orders = None if self.order is None else batch.column(self.order)
        assert self.argument is not None
        return Given(slots, batch.column(self.argument), signs, orders)

    def given_of(self, batch: pa.RecordBatch, slots: Ints, rows: pa.Array) -> Given:
        """Return the argument in some rows of a batch, whose groups are `slots`."""
        names = [name for name in (self.argument, self.order) if name is not None]
        return self.given(batch.select(names).take(rows), slots, None)


def bind_aggregate(
    name: str, aggregate: Aggregate, argument: Field | None, order: Field | None, *, retracts: bool
) -> BoundAggregate:
    """Return an aggregate of fields. `retracts` if their records may be taken away.

    Raises JobDefinitionError when there is no such aggregate of the field.
    """
    if argument is None:
        return BoundAggregate(name, None, None, None)
    function, kind = aggregate.function, argument.arrow_type
    if pa.types.is_nested(kind):
        raise JobDefinitionError(
            f"The aggregate {name!r}: {function} cannot take {kind}; select a part of it first."
        )
    if function in ("sum", "avg") and not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    ):
        raise JobDefinitionError(
            f"The aggregate {name!r}: {function} needs a number, but its argument is {kind}."
        )
    accumulator = _accumulator(name, aggregate, argument, order, retracts=retracts)
    return BoundAggregate(name, argument.name, None if order is None else order.name, accumulator)


def _accumulator(
    name: str, aggregate: Aggregate, argument: Field, order: Field | None, *, retracts: bool
) -> Accumulator:
    function = aggregate.function
    if function == "approx_count_distinct":
        if retracts:
            raise JobDefinitionError(
                f"The aggregate {name!r}: an estimate cannot take back a value, as a changelog does. Use "
                "ps.Aggregate.count(..., distinct=True)."
            )
        if not can_be_hashed(argument.arrow_type):
            raise JobDefinitionError(f"The aggregate {name!r} cannot take {argument.arrow_type}.")
        return EstimatedDistinct(name, argument, aggregate.accuracy)
    if function in ("first", "last"):
        if not retracts:
            return FirstValue(name, argument, order, last=function == "last")
        if order is None:
            raise JobDefinitionError(
                f"The aggregate {name!r}: in a changelog {function} needs the field that orders the rows: "
                f'ps.Aggregate.{function}(..., order_by="at").'
            )
        return MultisetAggregate(name, function, argument, order)
    if function in ("min", "max"):
        if retracts:
            return MultisetAggregate(name, function, argument)
        return Extreme(name, argument, largest=function == "max")
    if aggregate.distinct:
        return MultisetAggregate(name, function, argument)
    if function == "count":
        return CountValues(name)
    return SumOf(name, argument, averages=function == "avg", retracts=retracts)
