"""Ordering: the order of rows by fields, up or down, with nulls first or last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import JobDefinitionError
from penstock.records.types import RecordType
from penstock.tables.value_order import order_codes

__all__ = ["OrderBy", "order_of", "orders_of", "same_rows"]

Ints = npt.NDArray[np.int64]

_FORM: Final = re.compile(
    r"\s*[\"`]?(\w+)[\"`]?(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class OrderBy:
    """A field that orders rows. As in Flink and Spark, null is smaller than all values unless said otherwise."""

    field: str
    descending: bool = False
    nulls_first: bool = True

    def codes(self, column: pa.Array) -> Ints:
        """Return an integer for each value; the integers sort like the rows."""
        codes = order_codes(column)
        if self.descending:
            codes = ~codes
        if column.null_count and self.nulls_first == self.descending:
            # If there are nulls, the codes of the other values are small.
            codes[column.is_null().to_numpy(zero_copy_only=False)] = (
                2**62 if not self.nulls_first else -(2**62)
            )
        return codes


def orders_of(given: Sequence[str], records: RecordType, who: str) -> tuple[OrderBy, ...]:
    """Return the order that texts such as `amount DESC NULLS LAST` describe. Raises JobDefinitionError."""
    if isinstance(given, str) or not given:
        raise JobDefinitionError(
            f'{who} needs the fields that order its rows: order_by=["amount DESC", "at"].'
        )
    found = []
    for text in given:
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise JobDefinitionError(
                f"{who}: {text!r} does not order rows; write a field, and perhaps ASC, DESC, NULLS FIRST or NULLS "
                "LAST. Select an expression as a field first."
            )
        name, direction, nulls = match.groups()
        if pa.types.is_nested(records.field(name).arrow_type):
            raise JobDefinitionError(
                f"{who}: the field {name!r} has no order; it is {records.field(name).arrow_type}."
            )
        descending = (direction or "").lower() == "desc"
        found.append(OrderBy(name, descending, not descending if nulls is None else nulls.lower() == "first"))
    return tuple(found)


def order_of(
    rows: pa.StructArray | pa.RecordBatch, orders: Sequence[OrderBy], names: Sequence[str]
) -> list[Ints]:
    """Return the codes of rows by which they sort: those of the orders, then of all other fields.

    The other fields make the order independent of the origin of rows.
    """
    columns = dict(
        zip(names, rows.flatten() if isinstance(rows, pa.StructArray) else rows.columns, strict=True)
    )
    codes = [one.codes(columns[one.field]) for one in orders]
    first = {one.field for one in orders}
    return codes + [order_codes(column) for name, column in columns.items() if name not in first]


def same_rows(codes: Sequence[Ints], one: Ints, other: Ints) -> npt.NDArray[np.bool_]:
    """Return whether each pair of rows is equal, by the codes of all their fields."""
    found: npt.NDArray[np.bool_] = np.logical_and.reduce([code[one] == code[other] for code in codes])
    return found
