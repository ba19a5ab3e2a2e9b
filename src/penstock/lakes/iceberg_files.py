"""Iceberg files: Parquet files of a task, which no snapshot names yet, and their entries for a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa

from penstock.lakes.held_files import HeldFiles, PartitionValues
from penstock.lakes.iceberg_table import partition_arrays

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import PrimitiveType

__all__ = ["IcebergFile", "IcebergStage", "data_file"]

_MAX_FOLDER_CHARS: Final = 100


class IcebergFile(msgspec.Struct, frozen=True):
    """A complete file. `partition` has the values of the partition fields, as Iceberg stores single values."""

    path: str
    size: int
    partition: list[bytes | None]
    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int] | None


class IcebergStage:
    """The files of one task: one for each combination of partition values, or one in all."""

    def __init__(self, metadata: TableMetadata, files: FileIO, name: str, fields: Sequence[str]) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.table.locations import load_location_provider

        self._metadata: Final = metadata
        self._io: Final = files
        self._name: Final = name
        self._schema: Final = metadata.schema().select(*fields)
        self._spec: Final = metadata.spec()
        self._arrow_schema: Final = schema_to_pyarrow(self._schema)
        self._locations: Final = load_location_provider(metadata.location, metadata.properties)
        self._files: Final = HeldFiles(self._open)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records."""
        columns = [batch.column(field.name).cast(field.type) for field in self._arrow_schema]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)
        self._files.add(rows, partition_arrays(rows, self._spec, self._schema))

    def finish(self) -> list[IcebergFile]:
        """Complete all files, durably, and return them."""
        return self._files.finish()

    def discard(self) -> None:
        """Remove all files. Never raises."""
        self._files.abandon()
        for done in self._files.done:
            with suppress(Exception):
                self._io.delete(done.path)

    def _open(self, values: PartitionValues) -> _OpenFile:
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        found = [
            PartitionFieldValue(field, value) for field, value in zip(self._spec.fields, values, strict=True)
        ]
        key = PartitionKey(found, self._spec, self._schema) if found else None
        name = f"{self._name}-{uuid.uuid4().hex[:12]}.parquet"
        folders = [] if key is None else key.to_path().split("/")
        if any(len(folder) > _MAX_FOLDER_CHARS for folder in folders):
            # No file system has a folder of such a name, which is only for people.
            name, in_path = "/".join([*(folder[:_MAX_FOLDER_CHARS] for folder in folders), name]), None
        else:
            in_path = key
        return _OpenFile(
            self._io, self._locations.new_data_location(name, in_path), key, self._metadata, self._schema
        )


class _OpenFile:
    """A file that is being written, and begun with its first records."""

    def __init__(self, files: FileIO, path: str, key: Any, metadata: TableMetadata, schema: Any) -> None:
        from pyiceberg.io.pyarrow import ParquetFormatModel

        self._io: Final = files
        self._path: Final = path
        self._key: Final = key
        self._output: Final = files.new_output(path)
        self._writer: Final = ParquetFormatModel().create_writer(self._output, schema, metadata.properties)
        self._types: Final = _partition_types(metadata)
        self._is_begun = False

    def write(self, records: Sequence[pa.RecordBatch]) -> None:
        self._is_begun = True
        self._writer.write(pa.Table.from_batches(records))

    def close(self) -> IcebergFile:
        from pyiceberg.conversions import to_bytes

        statistics = self._writer.close().to_serialized_dict()
        values = [] if self._key is None else [self._key.partition[i] for i in range(len(self._types))]
        partition = [
            None if value is None else to_bytes(kind, value)
            for kind, value in zip(self._types, values, strict=True)
        ]
        return IcebergFile(self._path, len(self._output), partition, **statistics)

    def abandon(self) -> None:
        if self._is_begun:
            with suppress(Exception):
                self._writer.close()
            self._io.delete(self._path)


def data_file(file: IcebergFile, metadata: TableMetadata) -> DataFile:
    """Return the entry of a file in a snapshot."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    spec = metadata.spec()
    kinds = _partition_types(metadata)
    values = [
        None if value is None else from_bytes(kind, value)
        for kind, value in zip(kinds, file.partition, strict=True)
    ]
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.size,
        record_count=file.record_count,
        column_sizes=file.column_sizes,
        value_counts=file.value_counts,
        null_value_counts=file.null_value_counts,
        nan_value_counts=file.nan_value_counts,
        lower_bounds=file.lower_bounds,
        upper_bounds=file.upper_bounds,
        split_offsets=file.split_offsets,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    found.spec_id = spec.spec_id
    return found


def _partition_types(metadata: TableMetadata) -> list[PrimitiveType]:
    fields = metadata.spec().partition_type(metadata.schema()).fields
    return [cast("PrimitiveType", field.field_type) for field in fields]
