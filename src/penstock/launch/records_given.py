"""Records given: convert Python records and frames to Arrow tables of a stream's type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import RecordType

__all__ = ["ROWS", "Frame", "is_frame", "table_of_frame", "table_of_records", "tables_of"]

Frame: TypeAlias = Any
"""A pandas, Polars or Arrow table: any object with the Arrow PyCapsule interface."""

ROWS: Final = 65_536
"""The maximum number of records in one file, so that several tasks can read a long input."""


def is_frame(given: object) -> bool:
    """Return whether a value is a table of a data frame library."""
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def table_of_records(stream: str, record_type: RecordType, records: Sequence[Any]) -> pa.Table:
    """Convert records of the stream's class, or dicts with its fields, to a table.

    Raises SchemaError, which names what does not fit.
    """
    objects = [
        _object(stream, record_type, number, record) if isinstance(record, Mapping) else record
        for number, record in enumerate(records)
    ]
    try:
        batch = record_type.batch(objects, check=False)
    except SchemaError as e:
        raise SchemaError(f"The records for the stream {stream!r}: {e}") from None
    return pa.table(batch.columns, schema=_nullable(record_type))


def _object(stream: str, record_type: RecordType, number: int, record: Mapping[str, Any]) -> Any:
    unknown = [name for name in record if name not in record_type.field_names]
    if unknown:
        raise SchemaError(
            f"Record {number} for the stream {stream!r} has a field {unknown[0]!r}, but {record_type.name} has only "
            f"{', '.join(record_type.field_names)}."
        )
    try:
        return msgspec.convert(dict(record), record_type.python_class)
    except msgspec.ValidationError as e:
        raise SchemaError(f"Record {number} for the stream {stream!r} does not fit: {e}.") from None


def table_of_frame(stream: str, record_type: RecordType, frame: Frame) -> pa.Table:
    """Convert the columns of a frame to the fields and types of a stream; other columns are ignored.

    Raises SchemaError, which names what does not fit.
    """
    table = _arrow(frame)
    columns = []
    for field in record_type.schema:
        if field.name in table.column_names:
            columns.append(_cast(stream, table.column(field.name), field))
        elif field.nullable:
            columns.append(pa.nulls(len(table), field.type))
        else:
            raise SchemaError(
                f"The frame for the stream {stream!r} has no column {field.name!r}; it has "
                f"{', '.join(table.column_names) or 'none'}."
            )
    return pa.table(columns, schema=_nullable(record_type))


def _nullable(record_type: RecordType) -> pa.Schema:
    """Return the schema of written files. Fields may be null, since a record without a value is a dead letter later."""
    return pa.schema([field.with_nullable(True) for field in record_type.schema])


def _arrow(frame: Frame) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    return pa.table(frame)


def _cast(stream: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except (pa.ArrowException, ValueError) as e:
        raise SchemaError(
            f"The column {field.name!r} of the frame for the stream {stream!r} is {column.type}, and cannot be "
            f"{field.type}: {e}"
        ) from None


def tables_of(stream: str, record_type: RecordType, given: Any) -> Iterator[pa.Table]:
    """Yield a frame or a sequence of records as tables of at most `ROWS` rows."""
    if is_frame(given):
        table = table_of_frame(stream, record_type, given)
        yield from (table.slice(start, ROWS) for start in range(0, len(table), ROWS))
        return
    for start in range(0, len(given), ROWS):
        yield table_of_records(stream, record_type, given[start : start + ROWS])
