"""Part files: write the records of one task to a file, and join the files of a batch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bindings.types import FileFormat
from penstock.records.json_lines import JsonLines
from penstock.records.types import RecordType
from penstock.sinks.csv_rows import CsvRows

__all__ = ["PartWriter", "join_parquet", "join_text", "part_writer"]

_COPY_BYTES: Final = 1 << 20
# The size of a row group in a Parquet file, so that readers do not find thousands of small ones.
_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 32 << 20


class PartWriter(Protocol):
    """A writer of batches of records to one file."""

    header_bytes: int
    """The number of bytes at the beginning of the file that appear only once in a joined file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append records."""

    def close(self) -> None:
        """Complete the file. A second call does nothing."""


def part_writer(file_format: FileFormat, target: Path | IO[bytes], record_type: RecordType) -> PartWriter:
    """Return a writer of a new file in the given format, or of an open one, which stays open."""
    if file_format == "parquet":
        return _ParquetPart(target, record_type)
    if file_format == "csv":
        rows = CsvRows(record_type)
        return _TextPart(target, rows, rows.header)
    return _TextPart(target, JsonLines(record_type), b"")


class _Rows(Protocol):
    def encode(self, batch: pa.RecordBatch) -> bytes: ...


class _TextPart:
    def __init__(self, target: Path | IO[bytes], rows: _Rows, header: bytes) -> None:
        self.header_bytes = len(header)
        self._rows = rows
        self._is_own = isinstance(target, Path)
        self._file = target.open("xb", buffering=0) if isinstance(target, Path) else target
        self._write(header)

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(self._rows.encode(batch))

    def close(self) -> None:
        if self._is_own:
            self._file.close()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


class _ParquetPart:
    header_bytes = 0

    def __init__(self, target: Path | IO[bytes], record_type: RecordType) -> None:
        self._schema = record_type.schema
        self._writer = pq.ParquetWriter(target, self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [batch.column(name) for name in self._schema.names]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._rows += len(batch)
        self._bytes += self._waiting[-1].nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            # Groups of a whole size do not depend on how the records came; a replay then writes the same bytes.
            self._flush(self._rows - self._rows % _GROUP_ROWS or self._rows)

    def close(self) -> None:
        if self._waiting:
            self._flush(self._rows)
        self._writer.close()

    def _flush(self, count: int) -> None:
        """Write this many rows, and keep the others."""
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting = rows.slice(count).to_batches()
        self._rows, self._bytes = rows.num_rows - count, sum(batch.nbytes for batch in self._waiting)
        self._writer.write_table(rows.slice(0, count).combine_chunks(), row_group_size=_GROUP_ROWS)


def join_text(parts: Sequence[tuple[Path, int]], target: Path) -> None:
    """Join text files, given with the lengths of their headers, into one with one header."""
    with target.open("xb") as out:
        for place, (path, header_bytes) in enumerate(parts):
            with path.open("rb") as part:
                part.seek(header_bytes if place else 0)
                shutil.copyfileobj(part, out, _COPY_BYTES)


def join_parquet(parts: Sequence[Path], target: Path) -> None:
    """Join Parquet files of one schema; row groups stay as they are."""
    with pq.ParquetWriter(target, pq.read_schema(parts[0])) as out:
        for path in parts:
            with pq.ParquetFile(path) as part:
                for group in range(part.num_row_groups):
                    out.write_table(part.read_row_group(group))
