"""Tables: read CSV and Parquet files as batches of a record type."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.records.types import RecordType, empty_like, rows_where
from penstock.sources.base import BadRecord, SourceChunk
from penstock.sources.cells import Cells, cast_cells, missing_cells, parse_cells
from penstock.sources.lines import int64_array

__all__ = ["UnreadableFileError", "parquet_rows", "read_csv", "read_parquet"]

_CSV_BLOCK_BYTES: Final = 8 << 20
_CHUNK_ROWS: Final = 512 * 1024


class UnreadableFileError(Exception):
    """The content of a file cannot be parsed from `offset` on; the message says why. Only the file log sees it.

    The bytes of the file are at fault. When the system cannot read them, OSError or MemoryError is raised.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def _is_of_system(error: Exception) -> bool:
    """Return whether the system caused an error of Arrow.

    Arrow raises OSError for damaged bytes as well; only the system's own errors have a number.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def parquet_rows(path: str) -> int:
    """Return how many rows a Parquet file has. Raises UnreadableFileError, OSError and MemoryError."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as e:
        if _is_of_system(e):
            raise
        raise UnreadableFileError(f"The Parquet file cannot be read: {e}", 0) from e


def read_parquet(
    path: str, partition: str, start: int, end: int, record_type: RecordType
) -> Iterator[SourceChunk]:
    """Yield the rows [start, end) of a Parquet file. The offset of a record is its row, from 0.

    A row group is cut by skipping rows at its start, which costs their decoding (about 0.02 us per row).
    """
    position = start
    if Path(path).stat().st_size == 0:
        return
    try:
        with pq.ParquetFile(path) as file:
            for offset, table in _parquet_batches(file, start, end, record_type):
                yield _table_chunk(table, partition, np.arange(offset, offset + len(table)), record_type)
                position = offset + len(table)
    except (OSError, pa.ArrowException) as e:
        if _is_of_system(e):
            raise
        reason = f"The Parquet file cannot be read from row {position} on: {e}"
        raise UnreadableFileError(reason, position) from e


def _parquet_batches(
    file: pq.ParquetFile, start: int, end: int, record_type: RecordType
) -> Iterator[tuple[int, pa.RecordBatch]]:
    wanted = [name for name in record_type.field_names if name in file.schema_arrow.names]
    if not wanted and file.metadata.num_rows:
        raise UnreadableFileError(_no_fields(record_type, file.schema_arrow.names), 0)
    groups, position = _row_groups(file.metadata, start, end)
    for batch in file.iter_batches(_CHUNK_ROWS, row_groups=groups, columns=wanted, use_threads=False):
        low, high = max(start - position, 0), min(end - position, len(batch))
        if low < high:
            yield position + low, batch.slice(low, high - low)
        position += len(batch)


def _row_groups(metadata: Any, start: int, end: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows of [start, end), and the first row of the first of them."""
    groups: list[int] = []
    first = position = 0
    for group in range(metadata.num_row_groups):
        behind = position + metadata.row_group(group).num_rows
        if behind > start and position < end:
            first = first if groups else position
            groups.append(group)
        position = behind
    return groups, first


def _table_chunk(
    table: pa.RecordBatch, partition: str, offsets: npt.NDArray[np.int64], record_type: RecordType
) -> SourceChunk:
    cells = [
        cast_cells(table.column(f.name), f) if f.name in table.schema.names else missing_cells(f, len(table))
        for f in record_type.fields
    ]

    def raw(rows: pa.Array) -> list[bytes]:
        return [msgspec.json.encode(row, enc_hook=str) for row in table.take(rows).to_pylist()]

    return _chunk(cells, partition, offsets, record_type, raw)


def read_csv(path: str, partition: str, record_type: RecordType) -> Iterator[SourceChunk]:
    """Yield the rows of a CSV file with a header. The offset of a record is its row, from 1, without blank lines.

    An empty cell is null, unless it is quoted (`""`) in a column of str or bytes.
    """
    done = 0
    try:
        header = _csv_header(path)
        if header is None:
            return
        places = {name: place for place, name in enumerate(header)}
        if not places.keys() & set(record_type.field_names):
            raise UnreadableFileError(_no_fields(record_type, header), 0)
        invalid: list[pa.csv.InvalidRow] = []
        with _open_csv(path, len(header), invalid) as reader:
            for table in reader:
                early, invalid[:] = _split_reached(invalid, done, len(table))
                offsets = _row_numbers(done, len(table), early)
                done += len(table) + len(early)
                chunk = _csv_chunk(table, partition, offsets, places, record_type)
                yield _with_bad(chunk, _invalid(partition, early))
        if invalid:
            empty = SourceChunk(partition, pa.array([], pa.int64()), batch=empty_like(record_type.schema))
            yield _with_bad(empty, _invalid(partition, invalid))
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as e:
        if _is_of_system(e):
            raise
        raise UnreadableFileError(f"The CSV file cannot be read after row {done}: {e}", done) from e


def _csv_header(path: str) -> list[str] | None:
    """Return the names of the columns, or None when no rows follow them."""
    # The reader decodes more than the header, so invalid UTF-8 after it must pass here.
    with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        header = next(filter(None, rows), None)
        if header is None or next(rows, None) is None:
            return None
        return [name.encode("utf-8", "surrogateescape").decode().strip() for name in header]


def _open_csv(path: str, width: int, invalid: list[pa.csv.InvalidRow]) -> pa.csv.CSVStreamingReader:
    names = [str(place) for place in range(width)]

    def note(row: pa.csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    return pa.csv.open_csv(
        path,
        # One thread: otherwise skipped rows would have no numbers.
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=_CSV_BLOCK_BYTES, column_names=names, skip_rows_after_names=1
        ),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            check_utf8=False,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _row_number(row: pa.csv.InvalidRow) -> int:
    # Arrow counts the header as row 1.
    return int(row.number) - 1


def _split_reached(
    invalid: list[pa.csv.InvalidRow], done: int, count: int
) -> tuple[list[pa.csv.InvalidRow], list[pa.csv.InvalidRow]]:
    """Split the skipped rows into those before the last of the next `count` good rows, and those after it."""
    early = 0
    while early < len(invalid) and _row_number(invalid[early]) <= done + count + early:
        early += 1
    return invalid[:early], invalid[early:]


def _row_numbers(done: int, count: int, left_out: Sequence[pa.csv.InvalidRow]) -> npt.NDArray[np.int64]:
    numbers = np.arange(done + 1, done + 1 + count + len(left_out))
    return np.setdiff1d(numbers, [_row_number(row) for row in left_out], assume_unique=True)


def _csv_chunk(
    table: pa.RecordBatch,
    partition: str,
    offsets: npt.NDArray[np.int64],
    places: Mapping[str, int],
    record_type: RecordType,
) -> SourceChunk:
    cells = [
        parse_cells(table.column(places[f.name]), f) if f.name in places else missing_cells(f, len(table))
        for f in record_type.fields
    ]

    def raw(rows: pa.Array) -> list[bytes]:
        columns = [column.take(rows).fill_null(b"").to_pylist() for column in table.columns]
        return [_csv_line(row) for row in zip(*columns, strict=True)]

    return _chunk(cells, partition, offsets, record_type, raw)


def _with_bad(chunk: SourceChunk, more: Sequence[BadRecord]) -> SourceChunk:
    if not more:
        return chunk
    return dataclasses.replace(chunk, bad=sorted([*chunk.bad, *more], key=lambda bad: bad.offset))


def _invalid(partition: str, rows: Sequence[pa.csv.InvalidRow]) -> list[BadRecord]:
    return [
        BadRecord(
            f"The row has {row.actual_columns} fields where the header has {row.expected_columns}.",
            partition,
            _row_number(row),
            row.text.encode(),
        )
        for row in rows
    ]


def _csv_line(cells: Sequence[bytes]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="").writerow([cell.decode("utf-8", "surrogateescape") for cell in cells])
    return line.getvalue().encode("utf-8", "surrogateescape")


def _chunk(
    cells: Sequence[Cells],
    partition: str,
    offsets: npt.NDArray[np.int64],
    record_type: RecordType,
    raw: Callable[[pa.Array], list[bytes]],
) -> SourceChunk:
    batch = pa.RecordBatch.from_arrays([c.column for c in cells], schema=record_type.schema)
    masks = [c.bad for c in cells if c.bad is not None]
    if not masks:
        return SourceChunk(partition, int64_array(offsets), batch=batch)
    bad = np.logical_or.reduce(masks)
    rows = np.flatnonzero(bad)
    places = int64_array(rows)
    reasons = zip(*(c.reasons(rows, places) for c in cells if c.bad is not None), strict=True)
    records = [
        BadRecord("; ".join(filter(None, why)), partition, offset, text)
        for why, offset, text in zip(reasons, offsets[rows].tolist(), raw(places), strict=True)
    ]
    return SourceChunk(partition, int64_array(offsets[~bad]), batch=rows_where(batch, ~bad), bad=records)


def _no_fields(record_type: RecordType, found: Sequence[str]) -> str:
    columns = ", ".join(map(repr, found[:20]))
    return (
        f"The file has none of the fields of {record_type!r}; its columns are {columns}. "
        "A CSV file needs a header line with the names of the fields."
    )
