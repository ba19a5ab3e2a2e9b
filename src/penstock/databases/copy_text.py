"""Copy text: the records of a batch as the CSV that PostgreSQL's COPY reads, made column by column."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.records.types import python_values

__all__ = ["column_type", "copy_text"]

_OPTIONS: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
_json: Final = msgspec.json.Encoder()
# PostgreSQL's name of a type, by the first of these that holds.
_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_nested, "jsonb"),
)


def column_type(kind: pa.DataType) -> str:
    """Return the type of PostgreSQL that holds every value of an Arrow type.

    >>> column_type(pa.timestamp("us", tz="UTC"))
    'timestamp with time zone'
    """
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with time zone"
    return next((name for holds, name in _TYPES if holds(kind)), "text")


def copy_text(batch: pa.RecordBatch) -> bytes:
    r"""Return records as CSV, one line each, nulls as nothing and text in quotes.

    Bytes are `\x` with hexadecimal digits, lists, maps and records inside records are JSON.

    >>> copy_text(pa.record_batch({"n": [1, None], "text": ['a"b', ""]}))
    b'1,"a""b"\n,""\n'
    """
    out = io.BytesIO()
    columns = [_as_text(column) for column in batch.columns]
    # Without columns there are no lines, and a sink always has a field.
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), out, _OPTIONS)
    return out.getvalue()


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
        return column
    if pa.types.is_binary(kind):
        texts = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_nested(kind):
        values = python_values(column)
        texts = [None if value is None else _json.encode(value).decode() for value in values]
        return pa.array(texts, pa.string())
    return pc.cast(column, pa.string())
