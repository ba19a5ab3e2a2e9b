"""Iceberg commits: the files that each snapshot of an Iceberg table has added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.bindings.types import IcebergBinding
from penstock.errors import BindingError
from penstock.lakes.committed_files import CommittedFile, LakeRows, TableGoneError, changed_error
from penstock.lakes.iceberg_catalog import as_external, file_settings, open_table, without_own

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["IcebergCommits"]

_LEAST_VERSION: Final = 2
_HISTORY: Final = ("snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics")


class IcebergCommits:
    """The commits of an Iceberg table. Their versions are the sequence numbers of snapshots of its main branch."""

    def __init__(self, binding: IcebergBinding) -> None:
        self._binding: Final = binding
        self._table: Table | None = None
        self._metadata = ""
        self._given: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers need: the columns of the table, without its history."""
        return {**self.__dict__, "_table": None}

    def open(self) -> str:
        """Open the table, and return its id."""
        table = open_table(self._binding)
        if table is None:
            raise BindingError(
                f"Stream {self._binding.stream!r}: the catalog has no Iceberg table {self._binding.place}. Bind the "
                "stream to one that it has."
            )
        if table.format_version < _LEAST_VERSION:
            raise BindingError(
                f"Stream {self._binding.stream!r}: the Iceberg table {self._binding.place} has the format version 1, "
                "whose snapshots have no order. Upgrade it to version 2 to read it as a stream."
            )
        self._table = table
        bare = table.metadata.model_copy(
            update={**{name: [] for name in _HISTORY}, "refs": {}, "current_snapshot_id": None}
        )
        self._metadata = bare.model_dump_json()
        self._given = without_own(self._binding, table.io.properties)
        return str(table.metadata.table_uuid)

    def newest(self) -> int:
        """Return the newest version."""
        with as_external(self._binding):
            snapshot = self._opened().refresh().current_snapshot()
        return 0 if snapshot is None else _version(snapshot)

    def files_at(self, version: int) -> Sequence[CommittedFile]:
        """Return the files of a version, by their age."""
        from pyiceberg.manifest import ManifestContent

        if version == 0:
            return []
        with as_external(self._binding):
            table = self._opened()
            snapshot = next(found for found in table.metadata.snapshots if _version(found) == version)
            manifests = snapshot.manifests(table.io)
            if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
                raise BindingError(
                    f"Stream {self._binding.stream!r}: the Iceberg table {self._binding.place} has rows that are "
                    "deleted by files of their own, which penstock does not read. Compact it first "
                    "(rewrite_data_files in Spark)."
                )
            entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
        entries.sort(key=lambda entry: (entry.sequence_number or 0, entry.data_file.file_path))
        return [_file(entry.data_file) for entry in entries]

    def added(self, after: int, upto: int) -> Iterator[tuple[int, Sequence[CommittedFile]]]:
        """Yield the versions after `after` up to `upto`, with the files that each added."""
        table = self._opened()
        for snapshot in self._behind(table, after):
            if _version(snapshot) <= upto:
                with as_external(self._binding):
                    files = self._added_by(table, snapshot)
                yield _version(snapshot), files

    def _behind(self, table: Table, after: int) -> list[Snapshot]:
        """Return the snapshots of the main branch after a version, oldest first."""
        found: list[Snapshot] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and _version(snapshot) > after:
            found.append(snapshot)
            parent = snapshot.parent_snapshot_id
            before = None if parent is None else table.metadata.snapshot_by_id(parent)
            # Expired snapshots leave no trace, but the one behind the version that was read has the next number.
            if before is None and _version(snapshot) != after + 1:
                raise TableGoneError(
                    f"Stream {self._binding.stream!r}: the Iceberg table {self._binding.place} no longer has the "
                    f"snapshots behind version {after}, which were not read yet. Start with a new checkpoint, which "
                    "reads the whole table, and let its snapshots live longer than the job may be stopped."
                )
            snapshot = before
        return found[::-1]

    def _added_by(self, table: Table, snapshot: Snapshot) -> list[CommittedFile]:
        from pyiceberg.manifest import ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        operation = Operation.OVERWRITE if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return []
        if operation != Operation.APPEND:
            if self._binding.reading.changed == "skip":
                return []
            place = f"the Iceberg table {self._binding.place}"
            raise changed_error(self._binding.stream, place, _version(snapshot), "deletes or rewrites rows")
        entries = [
            entry
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
        ]
        added = [
            _file(entry.data_file)
            for entry in entries
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]
        return sorted(added, key=lambda file: str(file.detail["path"]))

    def read(self, detail: Mapping[str, Any], fields: Sequence[str]) -> Iterator[LakeRows]:
        """Yield the rows of a file, with the names that its columns have in the table."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        from penstock.lakes.synced_io import SyncedIO

        metadata = _metadata_of(self._metadata)
        files = SyncedIO({**file_settings(self._binding), **self._given})
        columns = [name for name in fields if name in {field.name for field in metadata.schema().fields}]
        scan = ArrowScan(metadata, files, metadata.schema().select(*columns), AlwaysTrue())
        for batch in scan.to_record_batches([FileScanTask(_data_file(detail, metadata))]):
            yield batch, {}

    def _opened(self) -> Table:
        if self._table is None:
            self.open()
        assert self._table is not None
        return self._table


def _version(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _file(file: DataFile) -> CommittedFile:
    detail = {"path": file.file_path, "format": file.file_format.value, "spec": file.spec_id}
    return CommittedFile(file.file_size_in_bytes, file.record_count, detail)


def _metadata_of(text: str) -> TableMetadata:
    from pyiceberg.table.metadata import TableMetadataUtil

    return TableMetadataUtil.parse_raw(text)


def _data_file(detail: Mapping[str, Any], metadata: TableMetadata) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    spec = metadata.specs()[detail["spec"]]
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=detail["path"],
        file_format=FileFormat(detail["format"]),
        partition=Record(*([None] * len(spec.fields))),
        record_count=0,
        file_size_in_bytes=0,
    )
    found.spec_id = spec.spec_id
    return found
