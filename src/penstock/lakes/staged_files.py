"""Staged files: the Parquet files that a task writes into the folder of a table, which no commit names yet."""

from __future__ import annotations

import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.durable import make_folder, sync_file, sync_folder
from penstock.lakes.column_bounds import file_statistics

__all__ = ["FileStage", "StagedFile", "is_partition_type"]

_HELD_BYTES: Final = 64 << 20
_MAX_OPEN: Final = 64
# A folder has the value only for people; it may be cut, since the log has the whole.
_MAX_FOLDER_CHARS: Final = 100
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class StagedFile(msgspec.Struct, frozen=True):
    """A complete file: its path below the table, and what a commit says of it.

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
        self._open: Final[dict[tuple[str | None, ...], _OpenFile]] = {}
        self._held_bytes = 0
        self._done: Final[list[StagedFile]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records. They are written in large groups, which are better to read."""
        for values, rows in _parted(batch, self._partition_by):
            columns = [rows.column(name) for name in self._schema.names]
            self._file(values).held.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._write_held()

    def finish(self) -> list[StagedFile]:
        """Complete all files, durably, and return them."""
        while self._open:
            self._close_oldest()
        for folder in {(self._folder / file.path).parent for file in self._done}:
            sync_folder(folder)
        return self._done

    def discard(self) -> None:
        """Remove all files. Never raises."""
        for file in self._open.values():
            with suppress(Exception):
                file.abandon()
        for done in self._done:
            with suppress(OSError):
                (self._folder / done.path).unlink(missing_ok=True)

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        if values not in self._open:
            if len(self._open) >= _MAX_OPEN:
                self._close_oldest()
            parts = dict(zip(self._partition_by, values, strict=True))
            path = f"{_folder_of(parts)}{self._name}-{uuid.uuid4().hex[:12]}.snappy.parquet"
            self._open[values] = _OpenFile(self._folder, path, parts, self._schema)
        return self._open[values]

    def _write_held(self) -> None:
        for file in self._open.values():
            file.write_held()
        self._held_bytes = 0

    def _close_oldest(self) -> None:
        values = next(iter(self._open))
        self._done.append(self._open[values].close())
        del self._open[values]


class _OpenFile:
    """A file that is being written; `held` has the records of its next group of rows."""

    def __init__(self, folder: Path, path: str, values: Mapping[str, str | None], schema: pa.Schema) -> None:
        self.held: Final[list[pa.RecordBatch]] = []
        self._path: Final = path
        self._place: Final = folder / path
        self._values: Final = dict(values)
        self._schema: Final = schema
        self._writer: Any = None
        self._metadata: Final[list[pq.FileMetaData]] = []
        self._with_nan: Final[set[str]] = set()

    def write_held(self) -> None:
        if not self.held:
            return
        if self._writer is None:
            make_folder(self._place.parent)
            self._writer = pq.ParquetWriter(
                self._place, self._schema, compression="snappy", metadata_collector=self._metadata
            )
        table = pa.Table.from_batches(self.held, self._schema)
        for field in self._schema:
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table.column(field.name))).as_py():
                self._with_nan.add(field.name)
        self._writer.write_table(table)
        self.held.clear()

    def close(self) -> StagedFile:
        self.write_held()
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


def _parted(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the records of each combination of values, in their order."""
    if not partition_by or not len(batch):
        yield from [((), batch)] if len(batch) else []
        return
    codes = np.zeros(len(batch), np.int64)
    for name in partition_by:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = batch.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        rows = ordered.slice(start, end - start)
        yield tuple(_text(rows.column(name)[0].as_py()) for name in partition_by), rows


def _text(value: Any) -> str | None:
    """Return a value as the log has it, where no text and no value are the same."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value) or None


def _folder_of(values: Mapping[str, str | None]) -> str:
    parts = [
        f"{urllib.parse.quote(name, safe='')}="
        f"{_NO_VALUE if value is None else urllib.parse.quote(value, safe='')[:_MAX_FOLDER_CHARS]}/"
        for name, value in values.items()
    ]
    return "".join(parts)
