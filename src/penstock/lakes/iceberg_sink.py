"""Iceberg sink: the records of a micro-batch in an Iceberg table, exactly once, by one snapshot."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.bindings.types import IcebergBinding
from penstock.errors import BindingError, ExternalSystemError, PenstockError
from penstock.lakes.commit_rest import ATTEMPTS, CommitRest
from penstock.lakes.iceberg_catalog import as_external, file_settings, open_table, without_own
from penstock.lakes.iceberg_files import IcebergFile, IcebergStage, data_file
from penstock.lakes.iceberg_merge import merge_files
from penstock.lakes.iceberg_table import check_table, ensure_table
from penstock.lakes.stage_task import StageTask, files_of
from penstock.lakes.staged_changes import ChangeStage, StagedChanges, last_changes, read_staged_changes
from penstock.lakes.upsert_rows import UpsertRows
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["IcebergSink"]

_LINE: Final = "penstock.line"
_BATCH: Final = "penstock.batch"
_COMMITTED: Final = "penstock.committed."
_STAGED: Final = "penstock-changes"
# The library would repeat a refused commit without checking the number of the micro-batch.
_ONE_ATTEMPT: Final = {"commit.retry.num-retries": "0"}


class IcebergSink:
    """A sink that adds each record to an Iceberg table.

    Tasks write Parquet files among those of the table, which nobody reads before a snapshot names them. The commit that
    adds the snapshot of a micro-batch also sets a property of the table to its number, one for each sink and lineage.
    So a micro-batch that is repeated finds its number and commits nothing; of two drivers that commit the same one at
    the same time, the catalog refuses the second, which looks again.

    With `upserts` a record replaces the row of its key, or deletes it. Tasks then write their changes beside the files
    of the table, and the commit replaces the files that have rows of these keys.
    """

    exactly_once = True
    commits_in_tasks = False

    def __init__(
        self, binding: IcebergBinding, record_type: RecordType, upserts: UpsertRows | None = None
    ) -> None:
        self._binding: Final = binding
        self._upserts: Final = upserts
        self._schema: Final = record_type.schema if upserts is None else upserts.schema
        self._line = ""
        self._table: Table | None = None
        # For tasks: the table at the start, as JSON, and the catalog's settings for access to its files.
        self._metadata = ""
        self._given: dict[str, Any] = {}
        self._layout: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers need; the open table stays in the driver."""
        return {**self.__dict__, "_table": None}

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the table keeps it
        """Return the newest micro-batch that the table has."""
        table = open_table(self._binding)
        return -1 if table is None else _committed(table, self._line_of(lineage))

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # the table keeps it
        """Check or create the table. Raises BindingError with the remedy."""
        table = ensure_table(self._binding, self._schema)
        if self._upserts is not None:
            self._check_columns(table)
        self._table = table
        self._line = self._line_of(lineage)
        self._metadata = table.metadata.model_dump_json()
        self._given = without_own(self._binding, table.io.properties)
        self._layout = self._layout_of(table)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task that writes files which no snapshot names yet."""
        with as_external(self._binding):
            from pyiceberg.table.metadata import TableMetadataUtil

            from penstock.lakes.synced_io import SyncedIO

            name = f"{context.batch_id:010}-{context.partition:05}-{context.attempt}"
            files = SyncedIO({**file_settings(self._binding), **self._given})
            metadata = TableMetadataUtil.parse_raw(self._metadata)
            if self._upserts is not None:
                path = f"{metadata.location}/{_STAGED}/{name}-{uuid.uuid4().hex[:12]}.arrow"
                changes = ChangeStage(path, self._upserts, partial(_save, files), files.delete)
                return StageTask(changes, partial(as_external, self._binding))
            stage = IcebergStage(metadata, files, name, self._schema.names)
            return StageTask(stage, partial(as_external, self._binding))

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Add a snapshot with the files of a micro-batch, unless the table has it; then remove the files."""
        files = files_of(messages, IcebergFile if self._upserts is None else StagedChanges)
        if not files:
            return
        table = self._table
        if table is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        rest = CommitRest()
        while True:
            with as_external(self._binding):
                table.refresh()
                if _committed(table, self._line) >= batch_id:
                    self._remove_staged(table, batch_id, files)
                    return
                check_table(table, self._binding, self._schema)
                self._check_layout(table)
                if self._try_commit(table, batch_id, files):
                    return
            if not rest.take():
                break
        raise ExternalSystemError(
            f"Sink {self._binding.stream!r}: other writers committed to the Iceberg table {self._binding.place} before "
            f"micro-batch {batch_id} in each of {ATTEMPTS} attempts. Start the job again when there are fewer, or let "
            "its micro-batches be larger."
        )

    def _try_commit(self, table: Table, batch_id: int, files: Sequence[Any]) -> bool:
        """Commit a snapshot on the state of the table that was read; return False if it has changed since."""
        if self._upserts is None:
            return self._commit_upon(table, batch_id, partial(_append, table, files))
        parts = [_read(table, file.path) for file in files]
        old, new = merge_files(table, last_changes(parts, self._upserts.key), self._upserts.key)
        is_done = self._commit_upon(table, batch_id, partial(_overwrite, old, new))
        for path in [file.path for file in files] if is_done else [file.file_path for file in new]:
            with suppress(FileNotFoundError):
                table.io.delete(path)
        return is_done

    def _commit_upon(self, table: Table, batch_id: int, change: Callable[[Any], None]) -> bool:
        """Commit a snapshot made by `change`, and the number of the micro-batch; return False if others were faster."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import Table

        settings = {**table.metadata.properties, **_ONE_ATTEMPT}
        metadata = table.metadata.model_copy(update={"properties": settings})
        once = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)
        summary = {_LINE: self._line, _BATCH: str(batch_id)}
        try:
            with once.transaction() as transaction:
                transaction.set_properties({_COMMITTED + self._line: str(batch_id)})
                change(transaction.update_snapshot(snapshot_properties=summary))
        except CommitFailedException:
            return False
        return True

    def _remove_staged(self, table: Table, batch_id: int, files: Sequence[Any]) -> None:
        """Remove the files of tasks that a commit does not use."""
        if self._upserts is None:
            self._remove_unnamed(table, batch_id, files)
            return
        for file in files:
            with suppress(FileNotFoundError):
                table.io.delete(file.path)

    def _check_columns(self, table: Table) -> None:
        """Raise BindingError when a row that replaces another would lose values."""
        more = [name for name in table.schema().column_names if name.split(".")[0] not in self._schema.names]
        if more:
            raise BindingError(
                f"Sink {self._binding.stream!r}: the Iceberg table {self._binding.place} has further columns, "
                f"{', '.join(more)}, which rows that are replaced would lose. Add the fields to the records, or bind "
                "the sink to another table."
            )

    def _remove_unnamed(self, table: Table, batch_id: int, files: Sequence[IcebergFile]) -> None:
        """Remove files unless the table has them: the commit may be repeated after it has succeeded.

        When the snapshot of the micro-batch is gone, that is unknown, and they stay.
        """
        wanted = {_LINE: self._line, _BATCH: str(batch_id)}
        for snapshot in reversed(table.metadata.snapshots):
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if wanted.items() <= found.items():
                manifests = snapshot.manifests(table.io)
                named = {
                    entry.data_file.file_path
                    for manifest in manifests
                    if manifest.added_snapshot_id == snapshot.snapshot_id
                    for entry in manifest.fetch_manifest_entry(table.io)
                }
                for file in files:
                    if file.path not in named:
                        with suppress(FileNotFoundError):
                            table.io.delete(file.path)
                return

    def _layout_of(self, table: Table) -> Any:
        """Return the parts of a table on which written files rely: the ids of columns, and the partition fields."""
        columns = {name: table.schema().find_field(name).field_id for name in self._schema.names}
        return columns, table.spec().spec_id

    def _check_layout(self, table: Table) -> None:
        if self._layout_of(table) != self._layout:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: the columns or the partition fields of the Iceberg table "
                f"{self._binding.place} have changed while the job ran. Start it again, and it writes the files of "
                "this micro-batch anew."
            )

    def _line_of(self, lineage: str) -> str:
        return f"{self._binding.stream}-{lineage}"


def _append(table: Table, files: Sequence[IcebergFile], update: Any) -> None:
    """Add files to a snapshot."""
    from pyiceberg.table import TableProperties
    from pyiceberg.utils.properties import property_as_bool

    merges = property_as_bool(
        table.metadata.properties,
        TableProperties.MANIFEST_MERGE_ENABLED,
        TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
    )
    with update.merge_append() if merges else update.fast_append() as append:
        for file in files:
            append.append_data_file(data_file(file, table.metadata))


def _overwrite(old: Sequence[DataFile], new: Sequence[DataFile], update: Any) -> None:
    """Replace files in a snapshot."""
    with update.overwrite() as overwrite:
        for file in old:
            overwrite.delete_data_file(file)
        for file in new:
            overwrite.append_data_file(file)


def _save(files: FileIO, path: str, content: IO[bytes]) -> None:
    """Write a file of changes, durably."""
    with files.new_output(path).create() as output:
        shutil.copyfileobj(content, output)


def _read(table: Table, path: str) -> pa.Table:
    with table.io.new_input(path).open() as file:
        return read_staged_changes(file.read())


def _committed(table: Table, line: str) -> int:
    return int(table.properties.get(_COMMITTED + line, "-1"))
