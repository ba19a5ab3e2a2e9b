"""Value order: integers that sort like the values of a column, and like rows."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import python_values

__all__ = ["groups_of_codes", "order_codes"]

Ints = npt.NDArray[np.int64]


def order_codes(column: pa.Array) -> Ints:
    """Return an integer for each value; the integers compare like the values.

    Null is the smallest; NaN is equal to itself and the largest; both zeros are equal. Only the codes of one call can
    be compared.
    """
    kind = column.type
    if column.null_count or _needs_ranks(kind):
        return _ranks(column)
    if pa.types.is_floating(kind):
        return _float_codes(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    found: Ints = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def groups_of_codes(*codes: Ints) -> tuple[Ints, Ints]:
    """Return the order that sorts rows by some codes, the first one first, and where each group of equals starts."""
    order = np.lexsort(codes[::-1])
    is_first = np.zeros(len(order), bool)
    is_first[:1] = True
    for code in codes:
        found = code[order]
        is_first[1:] |= found[1:] != found[:-1]
    return order, np.flatnonzero(is_first)


def _needs_ranks(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def _ranks(column: pa.Array) -> Ints:
    """Return the rank of each value, from 1; 0 for null."""
    ranks = np.zeros(len(column), np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.drop_null()
    if not len(values):
        return ranks
    if pa.types.is_nested(column.type):
        # Equal values have equal text, and only equality matters for these types.
        texts = [msgspec.json.encode(value, order="deterministic") for value in python_values(values)]
        values = pa.array(texts, pa.binary())
    if _needs_ranks(values.type):
        found = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    else:
        found = 1 + np.unique(order_codes(values), return_inverse=True)[1]
    ranks[valid] = found
    return ranks


def _float_codes(values: npt.NDArray[np.float64]) -> Ints:
    canonical = np.where(np.isnan(values), np.nan, values + 0.0)
    bits = canonical.view(np.int64)
    # The bits of negative numbers grow with their size.
    found: Ints = np.where(bits >= 0, bits, bits ^ np.int64(2**63 - 1))
    return found
