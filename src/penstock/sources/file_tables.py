"""Tables: read CSV and Parquet files as batches of a record type."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.bindings.types import PLAIN_CSV, CsvDialect
from penstock.records.shown_values import show_values
from penstock.records.types import Field, RecordType, empty_like, rows_where
from penstock.sources.base import BadRecord, SourceChunk
from penstock.sources.cells import Cells, cast_cells, missing_cells, parse_cells
from penstock.sources.compressed_files import ExpandedContent
from penstock.sources.file_errors import UnreadableFileError, is_of_system
from penstock.sources.last_lines import last_line
from penstock.sources.lines import int64_array

__all__ = ["CsvFile", "parquet_rows", "read_csv", "read_parquet", "table_chunk"]

_CSV_BLOCK_BYTES: Final = 8 << 20
_CHUNK_ROWS: Final = 512 * 1024
# Whether cells are read as values of their types: only until the first one that does not fit.
_WAYS: Final = (True, False)


def parquet_rows(path: str) -> int:
    """Return how many rows a Parquet file has. Raises UnreadableFileError, OSError and MemoryError."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as e:
        if is_of_system(e):
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
                yield table_chunk(table, partition, np.arange(offset, offset + len(table)), record_type)
                position = offset + len(table)
    except (OSError, pa.ArrowException) as e:
        if is_of_system(e):
            raise
        reason = f"The Parquet file cannot be read from row {position} on: {e}"
        raise UnreadableFileError(reason, position) from e


def _parquet_batches(
    file: pq.ParquetFile, start: int, end: int, record_type: RecordType
) -> Iterator[tuple[int, pa.RecordBatch]]:
    wanted = [name for name in record_type.field_names if name in file.schema_arrow.names]
    if not wanted and file.metadata.num_rows:
        raise UnreadableFileError(_no_fields(record_type, file.schema_arrow.names), 0)
    _check_once(file.schema_arrow.names, wanted)
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


def table_chunk(
    table: pa.RecordBatch,
    partition: str,
    offsets: npt.NDArray[np.int64],
    record_type: RecordType,
    texts: Mapping[str, str | None] | None = None,
) -> SourceChunk:
    """Return rows of a table as records; `texts` has columns, as text, of which all rows have the same value."""

    def cells_of(field: Field) -> Cells:
        if field.name in table.schema.names:
            return cast_cells(table.column(field.name), field)
        text = (texts or {}).get(field.name)
        if text is None:
            return missing_cells(field, len(table))
        return parse_cells(pa.array([text.encode()] * len(table), pa.binary()), field)

    cells = [cells_of(field) for field in record_type.fields]

    def raw(rows: pa.Array) -> list[bytes]:
        found = table.take(rows)
        columns = [show_values(column) for column in found.columns]
        named = (dict(zip(found.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
        return [msgspec.json.encode(row, enc_hook=str) for row in named]

    return _chunk(cells, partition, offsets, record_type, raw)


@dataclass(frozen=True)
class CsvFile:
    """A CSV file: its path, how it is written, and if it is compressed, what opens its content."""

    path: str
    dialect: CsvDialect = PLAIN_CSV
    expanded: Callable[[], BinaryIO] | None = None

    def open(self) -> BinaryIO:
        """Open the content of the file. Raises OSError."""
        return Path(self.path).open("rb") if self.expanded is None else self.expanded()

    def open_for_arrow(self) -> Any:
        """Open the content of the file; Arrow reads a plain one without Python. Raises OSError."""
        return pa.OSFile(self.path) if self.expanded is None else self.expanded()


def read_csv(file: CsvFile, partition: str, record_type: RecordType) -> Iterator[SourceChunk]:
    """Yield the rows of a CSV file. The offset of a record is its row, from 1, without header and blank lines.

    An empty cell is null, unless it is quoted (`""`) in a column of str or bytes. Cells are read as values of their
    types at once. From the first block on in which one does not fit, they are read as they are and then converted, so
    that a bad cell costs one record.
    """
    done = read = 0
    try:
        found = _csv_header(file, record_type)
        if found is None:
            return
        header, header_rows = found
        places = {name: place for place, name in enumerate(header)}
        if not places.keys() & set(record_type.field_names):
            raise UnreadableFileError(_no_fields(record_type, header), 0)
        _check_once(header, record_type.field_names)
        layout = _CsvLayout(header, header_rows, places, file.dialect, record_type)
        for is_typed in _WAYS:
            rows = _SkippedRows(file.dialect, header_rows)
            try:
                for number, block in enumerate(_csv_blocks(file, layout, rows, is_typed=is_typed)):
                    if number < read:
                        continue
                    chunk = _csv_chunk(block, partition, layout, is_typed=is_typed)
                    if chunk is None:
                        break
                    read, done = read + 1, done + len(block.offsets) + len(block.skipped)
                    yield _with_bad(chunk, rows.as_bad(partition, block.skipped))
                else:
                    if rows.left:
                        none = pa.array([], pa.int64())
                        empty = SourceChunk(partition, none, batch=empty_like(record_type.schema))
                        yield _with_bad(empty, rows.as_bad(partition, rows.left))
                    return
            except pa.ArrowInvalid:
                if not is_typed:
                    raise
    except UnreadableFileError as e:
        raise UnreadableFileError(str(e), done) from e
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as e:
        if is_of_system(e):
            raise
        raise UnreadableFileError(f"The CSV file cannot be read after row {done}: {e}", done) from e


def _csv_header(file: CsvFile, record_type: RecordType) -> tuple[list[str], int] | None:
    """Return the names of the columns, and behind how many rows the records begin; None when there are none."""
    dialect = file.dialect
    # The reader decodes more than the header, so invalid UTF-8 after it must pass here.
    with (
        file.open() as content,
        io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        if not dialect.header:
            found = text.read(1)
            if not found:
                _raise_early_end(content)
            return (list(record_type.field_names), 0) if found else None
        rows = csv.reader(
            text,
            delimiter=dialect.delimiter,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        )
        number, header = next(((number, row) for number, row in enumerate(rows, 1) if row), (0, None))
        if header is None or next(rows, None) is None:
            _raise_early_end(content)
            return None
        return [name.encode("utf-8", "surrogateescape").decode().strip() for name in header], number


@dataclass(frozen=True)
class _CsvLayout:
    """The columns of a CSV file, where its records begin, the index of each name, the dialect, and the record type."""

    header: Sequence[str]
    header_rows: int
    places: Mapping[str, int]
    dialect: CsvDialect
    record_type: RecordType

    @property
    def names(self) -> list[str]:
        """The names of all columns for Arrow, which may not be the same twice."""
        return [str(place) for place in range(len(self.header))]

    @functools.cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the columns that fields have, where Arrow reads the same values as `parse_cells`; else bytes."""
        found = [
            (self.places[field.name], field) for field in self.record_type.fields if field.name in self.places
        ]
        return {
            str(place): field.arrow_type
            if field.enum is None and _is_read_alike(field.arrow_type)
            else pa.binary()
            for place, field in found
        }


def _is_read_alike(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_date)
    return any(check(kind) for check in checks)


@dataclass(frozen=True)
class _CsvBlock:
    """Rows of a CSV file, their numbers, and the rows that Arrow has skipped among them."""

    table: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    skipped: Sequence[pa.csv.InvalidRow]


def _csv_blocks(
    file: CsvFile, layout: _CsvLayout, rows: _SkippedRows, *, is_typed: bool
) -> Iterator[_CsvBlock]:
    done = 0
    held: _CsvBlock | None = None
    with file.open_for_arrow() as content, _open_csv(content, layout, rows, is_typed=is_typed) as reader:
        for table in reader:
            if held is not None:
                yield held
            early = rows.reached(done, len(table))
            offsets = rows.numbers(done, len(table), early)
            done += len(table) + len(early)
            held = _CsvBlock(table, offsets, early)
        if _early_end(content) is not None:
            held = _without_last_row(held, rows)
        open_row = None
        if held is not None and not rows.left and _ends_in_quotes(file, layout, held, is_typed=is_typed):
            open_row = held.offsets[-1]
            held = _without_last_row(held, rows)
        if held is not None:
            yield held
        _raise_early_end(content)
    if open_row is not None:
        raise UnreadableFileError(
            f"A quote that is opened in row {open_row} of the CSV file is not closed, so that row and what follows it "
            "are not read.",
            0,
        )


def _ends_in_quotes(file: CsvFile, layout: _CsvLayout, block: _CsvBlock, *, is_typed: bool) -> bool:
    """Return whether the last row of a plain file, after its last block, goes on to the end of the file in quotes.

    A reader takes all other rows there for text of that row. Its last line then has no quote, and is not the last row.
    """
    quote = layout.dialect.quote.encode()
    line = last_line(file.path) if quote and file.expanded is None and len(block.table) else None
    if line is None or quote in line:
        return False
    alone = dataclasses.replace(layout, header_rows=0)
    skipped = _SkippedRows(layout.dialect, 0)
    try:
        with _open_csv(pa.BufferReader(line), alone, skipped, is_typed=is_typed) as reader:
            [found] = reader.read_all().combine_chunks().to_batches() or [block.table[:0]]
    except pa.ArrowInvalid:
        # As a row of its own it would have been refused.
        return True
    # As texts, in which NaN equals itself.
    rows = [str(list(map(show_values, table.columns))) for table in (found, block.table[-1:])]
    return bool(skipped.left) or rows[0] != rows[1]


def _without_last_row(block: _CsvBlock | None, rows: _SkippedRows) -> _CsvBlock | None:
    """Return the last block of a file whose content ended early without its last row, which may be cut off."""
    if rows.left:
        rows.left.pop()
    elif block is not None:
        block = dataclasses.replace(block, table=block.table[:-1], offsets=block.offsets[:-1])
    if block is not None and rows.left:
        block = dataclasses.replace(block, skipped=[*block.skipped, *rows.left])
        rows.left.clear()
    return block


def _early_end(content: Any) -> Exception | None:
    return content.ended_by if isinstance(content, ExpandedContent) else None


def _raise_early_end(content: Any) -> None:
    """Raise what has ended a content early."""
    if (error := _early_end(content)) is not None:
        raise error


def _open_csv(
    content: Any, layout: _CsvLayout, rows: _SkippedRows, *, is_typed: bool
) -> pa.csv.CSVStreamingReader:
    names, dialect = layout.names, layout.dialect
    return pa.csv.open_csv(
        content,
        # One thread: otherwise skipped rows would have no numbers.
        read_options=pa.csv.ReadOptions(
            use_threads=False,
            block_size=_CSV_BLOCK_BYTES,
            column_names=names,
            skip_rows_after_names=layout.header_rows,
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            newlines_in_values=bool(dialect.quote),
            invalid_row_handler=rows.note,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=layout.types if is_typed else dict.fromkeys(names, pa.binary()),
            # Dead letters have the whole line, so as they are all columns are read.
            include_columns=list(layout.types) if is_typed else names,
            check_utf8=is_typed,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


class _SkippedRows:
    """The rows that Arrow has skipped, since they have too many or too few values."""

    def __init__(self, dialect: CsvDialect, header_rows: int) -> None:
        self.dialect = dialect
        self._header_rows: Final = header_rows
        self.left: list[pa.csv.InvalidRow] = []

    def note(self, row: pa.csv.InvalidRow) -> str:
        """Note a row, and have Arrow skip it."""
        self.left.append(row)
        return "skip"

    def _number(self, row: pa.csv.InvalidRow) -> int:
        # Arrow counts the header, too.
        return int(row.number) - self._header_rows

    def reached(self, done: int, count: int) -> list[pa.csv.InvalidRow]:
        """Take the rows that come before the last of the next `count` good rows."""
        early = 0
        while early < len(self.left) and self._number(self.left[early]) <= done + count + early:
            early += 1
        found, self.left[:early] = self.left[:early], []
        return found

    def numbers(self, done: int, count: int, left_out: Sequence[pa.csv.InvalidRow]) -> npt.NDArray[np.int64]:
        """Return the numbers of the next `count` good rows, among which some are left out."""
        numbers = np.arange(done + 1, done + 1 + count + len(left_out))
        return np.setdiff1d(numbers, [self._number(row) for row in left_out], assume_unique=True)

    def as_bad(self, partition: str, rows: Sequence[pa.csv.InvalidRow]) -> list[BadRecord]:
        """Return skipped rows as bad records."""
        expected = "the header has" if self.dialect.header else "the stream has"
        return [
            BadRecord(
                f"The row has {row.actual_columns} fields where {expected} {row.expected_columns}.",
                partition,
                self._number(row),
                row.text.encode(),
            )
            for row in rows
        ]


def _csv_chunk(block: _CsvBlock, partition: str, layout: _CsvLayout, *, is_typed: bool) -> SourceChunk | None:
    """Return the rows of a block as records; None if a value that was read as its type does not fit."""
    table, dialect = block.table, layout.dialect
    cells = [_csv_cells(table, field, layout) for field in layout.record_type.fields]
    if is_typed and any(one.bad is not None for one in cells):
        return None

    def raw(rows: pa.Array) -> list[bytes]:
        columns = [column.take(rows).fill_null(b"").to_pylist() for column in table.columns]
        return [_csv_line(row, dialect) for row in zip(*columns, strict=True)]

    return _chunk(cells, partition, block.offsets, layout.record_type, raw)


def _csv_cells(table: pa.RecordBatch, field: Field, layout: _CsvLayout) -> Cells:
    if field.name not in layout.places:
        return missing_cells(field, len(table))
    column = table.column(str(layout.places[field.name]))
    if pa.types.is_binary(column.type):
        return parse_cells(column, field)
    if pa.types.is_floating(column.type) and pc.is_inf(column).true_count:
        # As text it tells whether it is infinite, or too large a number.
        return Cells(column, np.ones(len(column), bool), column, field)
    return Cells(column, None, column, field)


def _with_bad(chunk: SourceChunk, more: Sequence[BadRecord]) -> SourceChunk:
    if not more:
        return chunk
    return dataclasses.replace(chunk, bad=sorted([*chunk.bad, *more], key=lambda bad: bad.offset))


def _csv_line(cells: Sequence[bytes], dialect: CsvDialect) -> bytes:
    if not dialect.quote:
        return dialect.delimiter.encode().join(cells)
    line = io.StringIO(newline="")
    writer = csv.writer(line, delimiter=dialect.delimiter, quotechar=dialect.quote, lineterminator="")
    writer.writerow([cell.decode("utf-8", "surrogateescape") for cell in cells])
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


def _check_once(header: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise UnreadableFileError when a file has several columns of the same name, of which one is wanted."""
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is not None:
        raise UnreadableFileError(
            f"The file has {header.count(twice)} columns named {twice!r}, so it does not say which of them is the "
            "field. Rename all but one.",
            0,
        )


def _no_fields(record_type: RecordType, found: Sequence[str]) -> str:
    columns = ", ".join(map(repr, found[:20]))
    return (
        f"The file has none of the fields of {record_type!r}; its columns are {columns}. "
        "A CSV file needs a header line with the names of the fields."
    )
