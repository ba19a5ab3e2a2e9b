"""Formats: lossless encoding of the batches of a table as the bytes of one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import SnapshotError
from penstock.snapshots.arrow_schemas import missing_row
from penstock.snapshots.csv_format import CsvFormat
from penstock.snapshots.hidden_nulls import without_hidden_nulls
from penstock.snapshots.json_lines_format import JsonLinesFormat
from penstock.snapshots.row_sizes import Bound, runs_within
from penstock.snapshots.stores import Data
from penstock.snapshots.text_columns import json_texts
from penstock.snapshots.text_rows import NOT_FITTING, UnfitRowError, first_unfit, line_of, row_bounds

__all__ = ["FORMATS", "SnapshotFormat", "decode", "encode", "json_rows", "line_of_row"]

SnapshotFormat: TypeAlias = Literal["csv", "jsonl", "parquet", "arrow"]
FORMATS: Final[tuple[str, ...]] = get_args(SnapshotFormat)

_ROWS: Final = 1 << 16
# Rows are combined into pieces, in which the texts of a column must stay below 2 GiB.
_PIECE_BYTES: Final = 16 << 20


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: SnapshotFormat) -> pa.Buffer:  # noqa: A002  # the one word for it
    """Encode rows as the bytes of a file. The bytes depend on the rows, not on how they are batched.

    Raises SnapshotError if batches do not match the schema, or have null where it does not allow null.
    """
    pieces = _rebatch(batches, schema)
    if format == "csv":
        as_csv = CsvFormat(schema)
        return _join(iter([as_csv.header()]), map(as_csv.encode, pieces))
    if format == "jsonl":
        return _join(iter(()), map(JsonLinesFormat(schema).encode, pieces))
    sink = pa.BufferOutputStream()
    if format == "parquet":
        _write_parquet(sink, pieces, schema)
    elif format == "arrow":
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            for piece in pieces:
                writer.write_batch(piece)
    else:
        raise _unknown(format)
    return sink.getvalue()


def _unknown(name: str) -> SnapshotError:
    return SnapshotError(f"{name!r} is not a format of snapshots. Use one of {', '.join(FORMATS)}.")


def _join(*parts: Iterator[Any]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    for part in parts:
        for piece in part:
            sink.write(piece)
    return sink.getvalue()


def _rebatch(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows in batches of equal size, so that the bytes of a file do not depend on the input batches."""
    checked = (_check(batch, schema) for batch in batches)
    return (_concat(run, schema) for run in runs_within(checked, Bound(_ROWS, _PIECE_BYTES)))


def _concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(schema))], schema=schema
    )


def _check(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # Only names and types must match; nullability is checked by the values.
    if batch.schema.names != schema.names or [f.type for f in batch.schema] != [f.type for f in schema]:
        raise SnapshotError(
            f"The rows have the columns {_format_schema(batch.schema)}, but the table has {_format_schema(schema)}. "
            "Convert them first."
        )
    for column, field in zip(batch.columns, schema, strict=True):
        row = missing_row(column, field)
        if row is not None:
            raise SnapshotError(
                f"The column {field.name!r} has null in row {row + 1} of a batch, or inside its value, where the "
                "schema allows none. Give a value, or declare it nullable."
            )
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _write_parquet(sink: Any, pieces: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    with pq.ParquetWriter(sink, schema, compression="zstd", version="2.6") as writer:
        for piece in pieces:
            try:
                columns = map(without_hidden_nulls, piece.columns)
                writer.write_batch(pa.RecordBatch.from_arrays(list(columns), schema=schema))
            except pa.ArrowInvalid as e:
                raise SnapshotError(
                    f"A value cannot be stored in Parquet ({e}). Use another format for this snapshot."
                ) from e


def decode(data: Data, schema: pa.Schema, format: SnapshotFormat) -> Iterator[pa.RecordBatch]:  # noqa: A002  # the one word for it
    """Yield the rows of a file.

    Raises UnfitRowError for the first row that does not fit the schema, SnapshotError if the file is not in the format.
    """
    if format == "csv":
        yield from CsvFormat(schema).decode(_bytes(data))
    elif format == "jsonl":
        yield from JsonLinesFormat(schema).decode(_bytes(data))
    elif format in ("parquet", "arrow"):
        first = 0
        for batch in _batches(data, format):
            yield _fit(batch, schema, first)
            first += len(batch)
    else:
        raise _unknown(format)


def _bytes(data: Data) -> Any:
    return np.frombuffer(data, np.uint8)


def _batches(data: Data, format: str) -> Iterator[pa.RecordBatch]:  # noqa: A002  # the one word for it
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    try:
        if format == "parquet":
            yield from pq.ParquetFile(pa.BufferReader(buffer)).iter_batches(
                batch_size=_ROWS, use_threads=False
            )
        else:
            with pa.ipc.open_file(pa.BufferReader(buffer)) as reader:
                for place in range(reader.num_record_batches):
                    yield reader.get_batch(place)
    except (pa.ArrowException, OSError) as e:
        raise SnapshotError(f"The file cannot be read as {format} ({e}). Write it again.") from e


def _fit(batch: pa.RecordBatch, schema: pa.Schema, first: int) -> pa.RecordBatch:
    """Cast a batch to the types of the schema; files edited with other tools may have others."""
    if sorted(batch.schema.names) != sorted(schema.names):
        reason = f"the file has the columns {_format_schema(batch.schema)}, but the table has {_format_schema(schema)}"
        raise UnfitRowError(first, "", "", reason)
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            fit = _cast(column, field.type, len(column))
        except NOT_FITTING:
            row, error = first_unfit(partial(_cast, column, field.type), len(column))
            raise UnfitRowError(first + row, field.name, str(column[row]), str(error)) from None
        row_without = missing_row(fit, field)
        if row_without is not None:
            raise UnfitRowError(first + row_without, field.name, "", "it must not be null")
        columns.append(fit)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType, count: int) -> pa.Array:
    part = column.slice(0, count)
    return part if part.type == kind else part.cast(kind)


def line_of_row(data: Data, format: SnapshotFormat, row: int) -> int | None:  # noqa: A002  # the one word for it
    """Return the line, counted from 1, in which a row of a file begins; None if the format has no lines."""
    if format not in ("csv", "jsonl"):
        return None
    content = _bytes(data)
    bounds = row_bounds(content, quoted=format == "csv")
    return line_of(content, int(bounds[row + (format == "csv")]))


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows for display, as in JSON Lines."""
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    return [msgspec.json.decode(text) for text in json_texts(rows).to_pylist()]
