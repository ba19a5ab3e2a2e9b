"""Staged files: the Parquet files that a task writes into the folder of a table, which no commit names yet."""

from __future__ import annotations

import time
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.durable import make_folder, sync_file, sync_folder
from penstock.lakes.column_bounds import file_statistics
from penstock.lakes.held_files import HeldFiles, PartitionValues

__all__ = ["FileStage", "StagedFile", "format_partition_value", "is_partition_type"]

# The value in the name of a folder is only for people, and may be cut: the log has the whole value.
_MAX_FOLDER_CHARS: Final = 100
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class StagedFile(msgspec.Struct, frozen=True):
    """A complete file: its path below the table, and its data for a commit.

    `values` has the text of each partition field; `statistics` is JSON.
    """

    path: str
    size: int
    values: dict[str, str | None]
    modified_ms: int
    statistics: str


class FileStage:
    """The files of one task: one for each combination of values of the partition fields, or one in all."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        self._folder: Final = folder
        self._name: Final = name
        self._schema: Final = pa.schema([field for field in schema if field.name not in partition_by])
        self._partition_by: Final = tuple(partition_by)
        self._files: Final = HeldFiles(self._open)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records."""
        columns = [batch.column(name) for name in self._schema.names]
        self._files.add(
            pa.RecordBatch.from_arrays(columns, schema=self._schema),
            [_without_empty(batch.column(name)) for name in self._partition_by],
        )

    def finish(self) -> list[StagedFile]:
        """Complete all files, durably, and return them."""
        done = self._files.finish()
        for folder in {(self._folder / file.path).parent for file in done}:
            sync_folder(folder)
        return done

    def discard(self) -> None:
        """Remove all files. Never raises."""
        self._files.abandon()
        for done in self._files.done:
            with suppress(OSError):
                (self._folder / done.path).unlink(missing_ok=True)

    def _open(self, values: PartitionValues) -> _OpenFile:
        parts = dict(zip(self._partition_by, map(format_partition_value, values), strict=True))
        path = f"{_folder_of(parts)}{self._name}-{uuid.uuid4().hex[:12]}.snappy.parquet"
        return _OpenFile(self._folder, path, parts, self._schema)


class _OpenFile:
    """A file that is being written, and begun with its first records."""

    def __init__(self, folder: Path, path: str, values: Mapping[str, str | None], schema: pa.Schema) -> None:
        self._path: Final = path
        self._place: Final = folder / path
        self._values: Final = dict(values)
        self._schema: Final = schema
        self._writer: Any = None
        self._metadata: Final[list[pq.FileMetaData]] = []
        self._with_nan: Final[set[str]] = set()

    def write(self, records: Sequence[pa.RecordBatch]) -> None:
        if self._writer is None:
            make_folder(self._place.parent)
            self._writer = pq.ParquetWriter(
                self._place, self._schema, compression="snappy", metadata_collector=self._metadata
            )
        table = pa.Table.from_batches(records, self._schema)
        for field in self._schema:
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table.column(field.name))).as_py():
                self._with_nan.add(field.name)
        self._writer.write_table(table)

    def close(self) -> StagedFile:
        self._writer.close()
        sync_file(self._place)
        return StagedFile(
            self._path,
            self._place.stat().st_size,
            self._values,
            int(time.time() * 1000),
            file_statistics(self._metadata[0], self._schema, self._with_nan),
        )

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._place.unlink()


def is_partition_type(kind: pa.DataType) -> bool:
    """Return whether a field of a type can partition a table.

    >>> is_partition_type(pa.string()), is_partition_type(pa.float64())
    (True, False)
    """
    known = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
    return any(is_type(kind) for is_type in known)


def _without_empty(values: pa.Array) -> pa.Array:
    """Return values in the form of the log, where an empty text and no value are the same."""
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


def format_partition_value(value: Any) -> str | None:
    """Return a value of a partition as the log of Delta has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _folder_of(values: Mapping[str, str | None]) -> str:
    parts = [
        f"{urllib.parse.quote(name, safe='')}="
        f"{_NO_VALUE if value is None else urllib.parse.quote(value, safe='')[:_MAX_FOLDER_CHARS]}/"
        for name, value in values.items()
    ]
    return "".join(parts)
