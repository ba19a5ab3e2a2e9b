"""Rows: records as CSV text, in bulk."""

from __future__ import annotations

import base64
import io
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv

from penstock.records.types import RecordType, python_values

__all__ = ["CsvRows"]


class CsvRows:
    """An encoder of record batches as CSV: nested values as JSON, bytes in base64, null as nothing."""

    def __init__(self, record_type: RecordType) -> None:
        self._schema: Final = record_type.schema
        self._json: Final = msgspec.json.Encoder()

    @property
    def header(self) -> bytes:
        """The header line, with the names of the fields."""
        names = ('"' + name.replace('"', '""') + '"' for name in self._schema.names)
        return ",".join(names).encode() + b"\n"

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return all records as lines, without a header."""
        columns = [self._column(batch.column(name)) for name in self._schema.names]
        out = io.BytesIO()
        options = pa.csv.WriteOptions(include_header=False)
        pa.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=self._schema.names), out, options)
        return out.getvalue()

    def _column(self, column: pa.Array) -> pa.Array:
        if pa.types.is_nested(column.type):
            return self._text(column, lambda value: self._json.encode(value).decode())
        if pa.types.is_binary(column.type):
            return self._text(column, lambda value: base64.b64encode(value).decode())
        return column

    def _text(self, column: pa.Array, encode: Any) -> pa.Array:
        values = python_values(column)
        return pa.array([None if value is None else encode(value) for value in values], pa.string())
