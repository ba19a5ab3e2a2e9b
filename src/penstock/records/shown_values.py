"""Shown values: the values of a column for people, including those that Python cannot represent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.records.types import python_values

__all__ = ["show_values"]


def show_values(column: pa.Array) -> list[Any]:
    """Return the values of a column; those that Python cannot represent become text.

    Python cannot represent times beyond the years 1 to 9999, or text that is not UTF-8.

    >>> show_values(pa.array([0, 2**62], pa.timestamp("us")))
    [datetime.datetime(1970, 1, 1, 0, 0), '<value out of range: 4611686018427387904>']
    """
    try:
        return python_values(column)
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        return [_shown(column.slice(row, 1)) for row in range(len(column))]


def _shown(column: pa.Array) -> Any:
    try:
        return python_values(column)[0]
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        pass
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())[0].as_py().decode("utf-8", "backslashreplace")
    if pa.types.is_struct(column.type):
        return {one.name: _shown(inner) for one, inner in zip(column.type, column.flatten(), strict=True)}
    try:
        return " ".join(column.to_string().split())[2:-2]
    except ValueError:
        return f"<a value of the type {column.type}>"
