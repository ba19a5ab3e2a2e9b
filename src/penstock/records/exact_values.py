"""Exact values: refuse Python values that a column would silently change."""

from __future__ import annotations

import datetime as dt
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["check_exact", "infinities"]

_NONE: Final = type(None)
_Values: TypeAlias = Sequence[Any] | npt.NDArray[Any]


def check_exact(values: _Values, column: pa.Array) -> None:
    """Raise ValueError when a column made from some values holds a different value.

    Arrow drops the fraction of numbers where it makes integers of them, takes a number for a time or a date as
    microseconds or days since 1970, and makes infinities of numbers that are too large for 32 bits.

    >>> check_exact([1, 2.0, None], pa.array([1, 2.0, None], pa.int64()))
    >>> check_exact([1.5], pa.array([1.5], pa.int64()))
    Traceback (most recent call last):
    ValueError: 1.5 is not a whole number
    """
    kind = column.type
    if pa.types.is_integer(kind):
        _check(values, frozenset({int, _NONE}), _has_fraction, "is not a whole number")
    elif pa.types.is_timestamp(kind):
        _check(values, frozenset({dt.datetime, _NONE}), _is_number, "is a number, not a time")
    elif pa.types.is_date(kind):
        _check(values, frozenset({dt.date, _NONE}), _is_number, "is a number, not a date")
    elif pa.types.is_float32(kind):
        infinite = np.flatnonzero(np.isinf(column.to_numpy(zero_copy_only=False))).tolist()
        _check([values[row] for row in infinite], frozenset(), math.isfinite, "is too large for 32 bits")


def infinities(column: pa.Array) -> int:
    """Return how many values of a column are infinite; a conversion makes more of numbers that are too large.

    >>> infinities(pa.array([1e300]).cast(pa.float32()))
    1
    """
    return pc.is_inf(column).true_count if pa.types.is_floating(column.type) else 0


def _check(values: _Values, unchanged: frozenset[type], is_changed: Callable[[Any], bool], why: str) -> None:
    """Raise ValueError for the first value that is changed; those of some types never are."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and int in unchanged:
        return
    given = values.tolist() if isinstance(values, np.ndarray) and values.dtype.kind in "iuf" else values
    if set(map(type, given)) <= unchanged:
        return
    changed = next((value for value in given if value is not None and is_changed(value)), None)
    if changed is not None:
        raise ValueError(f"{changed!r} {why}")


def _has_fraction(value: Any) -> bool:
    return isinstance(value, numbers.Number) and int(value) != value  # type: ignore[call-overload]  # those that a column takes are real


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number)
