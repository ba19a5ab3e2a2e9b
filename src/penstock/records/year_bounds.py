"""Year bounds: the dates and times in columns that Python cannot represent."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BEYOND", "beyond_years"]

BEYOND: Final = "beyond the years 1 to 9999"


def beyond_years(column: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of the times in a column that Python cannot represent; None if there are none.

    >>> beyond_years(pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())).to_pylist()
    [False, True]
    """
    years = _years(column.type)
    if years is None:
        return None
    beyond = pc.or_(pc.less(column, years[0]), pc.greater(column, years[1])).fill_null(False)
    return beyond if beyond.true_count else None


@functools.cache
def _years(kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the first and last value of a type that Python can represent; None for types that are not times."""
    # Created on first use, because Arrow imports pandas to create them.
    if kind.equals(pa.date32()):
        return pa.scalar(dt.date.min, kind), pa.scalar(dt.date.max, kind)
    if kind.equals(pa.timestamp("us", tz="UTC")):
        first, last = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
        return pa.scalar(first, kind), pa.scalar(last, kind)
    return None
