"""Rows: records as JSON lines or as CSV text, in bulk."""

from __future__ import annotations

import base64
import io
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv

from penstock.records import RecordType

__all__ = ["CsvRows", "JsonLines"]


class JsonLines:
    """Encodes batches of a record type as lines of JSON.

    Enumerations are written as their values, bytes in base64, times in ISO 8601, and NaN and None as null.
    """

    def __init__(self, record_type: RecordType) -> None:
        self._names = record_type.field_names
        # Rows are built straight from the columns: the user's own class may be slow to make, or check things.
        places = {f"f{i}": name for i, name in enumerate(self._names)}
        # Rows live for one call, and without garbage collection of a million of them it is twice as fast.
        fields = [(place, Any) for place in places]
        self._row = msgspec.defstruct("Row", fields, rename=places, gc=False)
        self._encoder: Final = msgspec.json.Encoder()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        r"""All records as lines, each with `\n` at its end."""
        columns = [_python_values(batch.column(name)) for name in self._names]
        return self._encoder.encode_lines(list(map(self._row, *columns)))


class CsvRows:
    """Encodes batches of a record type as CSV: nested values as JSON, bytes in base64, null as nothing."""

    def __init__(self, record_type: RecordType) -> None:
        self._schema: Final = record_type.schema
        self._json: Final = msgspec.json.Encoder()

    @property
    def header(self) -> bytes:
        """The line with the names of the fields."""
        names = ('"' + name.replace('"', '""') + '"' for name in self._schema.names)
        return ",".join(names).encode() + b"\n"

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """All records as lines, without a header."""
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
        values = _python_values(column)
        return pa.array([None if value is None else encode(value) for value in values], pa.string())


def _python_values(column: pa.Array) -> list[Any]:
    values: list[Any]
    if pa.types.is_nested(column.type):
        values = column.to_pylist(maps_as_pydicts="strict")
    elif column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        # NumPy's tolist is several times faster than Arrow's.
        values = column.to_numpy(zero_copy_only=False).tolist()
    else:
        values = column.to_pylist()
    return values
