"""Row difference: find where two columns, such as results of aggregates, differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["differ"]


def differ(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns of the same type and length differ. Null equals null, and NaN equals NaN."""
    valid, other_valid = (column.is_valid().to_numpy(zero_copy_only=False) for column in (one, other))
    unequal = pc.not_equal(one, other).fill_null(False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(one.type):
        both_nan = pc.and_(pc.is_nan(one), pc.is_nan(other)).fill_null(False)
        unequal &= ~both_nan.to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.bool_] = (valid != other_valid) | unequal
    return found
