"""Small columns: make and convert columns of a few values in a fraction of the time that Arrow takes.

Arrow takes some 5 us to make a column of Python's values and 10 to 20 us to call a kernel, however few values there
are, and five times as long if other work has used the processor's caches since the last call. For records that come one
by one, or some every few milliseconds, that is most of their cost.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy.typing as npt
import pyarrow as pa

__all__ = ["FEW", "are_all_rows", "cast_column", "column_of", "decimal_texts"]

FEW: Final = 256
"""Up to this many values, Python is faster than a kernel."""


def _numbers(code: str) -> Callable[[Any, pa.DataType], pa.Array]:
    def make(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])

    return make


def _bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    ends = array("i", itertools.accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    )


def _texts(values: Sequence[str], kind: pa.DataType) -> pa.Array:
    return _bytes([value.encode() for value in values], kind)


# The functions that make a column of a type, by its number, from values that are all of one class.
_MAKERS: Final[dict[int, tuple[type, Callable[[Any, pa.DataType], pa.Array]]]] = {
    pa.int32().id: (int, _numbers("i")),
    pa.int64().id: (int, _numbers("q")),
    pa.float64().id: (float, _numbers("d")),
    pa.binary().id: (bytes, _bytes),
    pa.string().id: (str, _texts),
}


def column_of(values: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a column as `pa.array(values, kind)` does, which raises what that raises.

    >>> column_of([1, 2], pa.int64()).to_pylist()
    [1, 2]
    """
    maker = _MAKERS.get(kind.id) if 0 < len(values) <= FEW else None
    if maker is not None:
        wanted, make = maker
        if all(type(value) is wanted for value in values):
            try:
                return make(values, kind)
            except (OverflowError, UnicodeEncodeError):
                # The error of Arrow is the same for any number of values.
                return pa.array(values, kind)
    return pa.array(values, kind)


def cast_column(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column as `column.cast(target)` does, which raises what that raises."""
    if column.type.equals(target):
        return column
    if len(column) <= FEW and pa.types.is_integer(column.type) and pa.types.is_integer(target):
        try:
            return column_of(column.to_pylist(), target)
        except (pa.ArrowInvalid, OverflowError):
            # The error of the cast is the same for any number of values.
            return column.cast(target)
    return column.cast(target)


def decimal_texts(column: pa.Array) -> pa.Array:
    """Return integers as decimal digits in bytes."""
    if len(column) <= FEW:
        texts = [None if value is None else b"%d" % value for value in column.to_pylist()]
        return column_of(texts, pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def are_all_rows(rows: list[int], count: int) -> bool:
    """Return whether rows are all rows of a column with this many values, in order, so that no selection is needed."""
    return len(rows) == count and rows == list(range(count))
