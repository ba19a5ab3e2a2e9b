"""Field texts: the values of a column as the strings that a store keeps for them."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import python_values

__all__ = ["field_texts"]

_json: Final = msgspec.json.Encoder()


def field_texts(column: pa.Array) -> Sequence[Any]:
    """Return each value as text, or as bytes for binary fields; None for null.

    Times are as in JSON; lists, maps and records are JSON.

    >>> field_texts(pa.array([20.5, 21, None]))
    ['20.5', '21', None]
    >>> field_texts(pa.array([[1, 2], None]))
    ['[1,2]', None]
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else _json.encode(value).decode() for value in python_values(column)]
    if pa.types.is_temporal(kind):
        return typing.cast("list[Any]", msgspec.to_builtins(column.to_pylist()))
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return typing.cast("list[Any]", (column if is_text else pc.cast(column, pa.string())).to_pylist())
