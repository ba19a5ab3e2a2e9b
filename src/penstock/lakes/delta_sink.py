"""Delta sink: the records of a micro-batch in a table of Delta Lake, exactly once, by one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.bindings.types import DeltaBinding
from penstock.errors import ExternalSystemError, PenstockError
from penstock.lakes.commit_rest import CommitRest
from penstock.lakes.delta_files import delta_files
from penstock.lakes.delta_merge import merge_changes
from penstock.lakes.delta_table import (
    as_external,
    check_replaceable,
    check_table,
    ensure_table,
    open_table,
)
from penstock.lakes.stage_task import StageTask, files_of
from penstock.lakes.staged_changes import ChangeStage, StagedChanges, last_changes, read_staged_changes
from penstock.lakes.staged_files import StagedFile
from penstock.lakes.upsert_rows import UpsertRows
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

__all__ = ["DeltaSink"]

# Readers of a table ignore names that begin like this.
_STAGED: Final = "_penstock_changes"


class DeltaSink:
    """A sink that adds each record to a Delta table.

    Tasks write Parquet files into the table's folder, which nobody reads before a commit names them. The commit of a
    micro-batch also has its number, as the transaction of an application that is this sink in this lineage. So a
    micro-batch that is repeated finds its number and commits nothing; of two drivers that commit the same one at the
    same time, Delta Lake refuses the second.

    With `upserts` a record replaces the row of its key, or deletes it. Tasks then write their changes beside the table,
    and the commit merges them.
    """

    exactly_once = True
    commits_in_tasks = False

    def __init__(
        self, binding: DeltaBinding, record_type: RecordType, upserts: UpsertRows | None = None
    ) -> None:
        self._binding: Final = binding
        self._upserts: Final = upserts
        self._schema: Final = record_type.schema if upserts is None else upserts.schema
        self._partition_by: tuple[str, ...] = ()
        self._application = ""
        self._table: DeltaTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers need; the open table stays in the driver."""
        return {**self.__dict__, "_table": None}

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the table keeps it
        """Return the newest micro-batch that the table has."""
        table = open_table(self._binding)
        return -1 if table is None else _committed(table, self._application_of(lineage))

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # the table keeps it
        """Check or create the table. Raises BindingError with the remedy."""
        self._table = ensure_table(self._binding, self._schema)
        if self._upserts is not None:
            check_replaceable(self._table, self._binding)
        self._partition_by = tuple(self._table.metadata().partition_columns)
        self._application = self._application_of(lineage)
        with as_external(self._binding):
            # A commit of an earlier run may not be on disk yet, and is not written again.
            delta_files(self._binding).settle()

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task that writes files which no commit names yet."""
        files = delta_files(self._binding)
        name = f"part-{context.batch_id:010}-{context.partition:05}-{context.attempt}"
        if self._upserts is not None:
            path = f"{_STAGED}/{name}-{uuid.uuid4().hex[:12]}.arrow"
            changes = ChangeStage(path, self._upserts, files.save, files.remove)
            return StageTask(changes, partial(_write_errors, self._binding))
        stage = files.stage(name, self._schema, self._partition_by)
        return StageTask(stage, partial(_write_errors, self._binding))

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Add the files of a micro-batch to the table, unless it has the micro-batch; then remove the files."""
        if self._upserts is not None:
            self._merge(batch_id, files_of(messages, StagedChanges), self._upserts)
            return
        files = files_of(messages, StagedFile)
        if not files:
            return
        table = self._prepared()
        before = table.version()
        with as_external(self._binding):
            table.update_incremental()
            if _committed(table, self._application) < batch_id:
                check_table(table, self._binding, self._schema)
                self._check_partitions(table)
                self._add(table, batch_id, files)
                table.update_incremental()
            else:
                self._remove_unnamed(table, files)
            delta_files(self._binding).settle_log(before + 1, table.version())

    def _prepared(self) -> DeltaTable:
        if self._table is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        return self._table

    def _merge(self, batch_id: int, files: Sequence[StagedChanges], upserts: UpsertRows) -> None:
        """Replace and delete the rows of a micro-batch, unless the table has it; then remove the files.

        The commit states which version it has read. When another writer was faster with the same files, Delta Lake
        refuses it, and the number of the micro-batch is checked again.
        """
        from deltalake.exceptions import CommitFailedError

        if not files:
            return
        table = self._prepared()
        before = table.version()
        rest = CommitRest()
        with as_external(self._binding):
            while True:
                table.update_incremental()
                if _committed(table, self._application) >= batch_id:
                    break
                check_table(table, self._binding, self._schema)
                check_replaceable(table, self._binding)
                parts = [read_staged_changes(self._read(file)) for file in files]
                try:
                    changes = last_changes(parts, upserts.key)
                    merge_changes(table, changes, upserts.key, self._properties(batch_id))
                except CommitFailedError:
                    if not rest.take():
                        raise
                    continue
                # Changes that find nothing to do, such as deletions of rows that are not there, are no commit.
                table.update_incremental()
                break
            there = delta_files(self._binding)
            # The library has written the merged files, and syncs nothing.
            there.settle()
            for file in files:
                there.remove(file.path)
            there.settle_log(before + 1, table.version())

    def _properties(self, batch_id: int) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(self._application, batch_id)])

    def _read(self, file: StagedChanges) -> bytes:
        content = delta_files(self._binding).find(file.path)
        if content is None:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: the changes {file.path} are no longer in {self._binding.directory}. "
                "Start the job again, which writes them anew."
            )
        return content

    def _check_partitions(self, table: DeltaTable) -> None:
        """Raise ExternalSystemError if the files were written for other partition fields than the table has now."""
        parts = tuple(table.metadata().partition_columns)
        if parts != self._partition_by:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: the Delta table {self._binding.directory} is now partitioned by "
                f"{', '.join(parts) or 'nothing'}, and the files of micro-batches by "
                f"{', '.join(self._partition_by) or 'nothing'}. Start the job again, which writes them anew."
            )

    def _add(self, table: DeltaTable, batch_id: int, files: Sequence[StagedFile]) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        added = [
            AddAction(file.path, file.size, file.values, file.modified_ms, True, file.statistics)
            for file in files
        ]
        try:
            table.create_write_transaction(
                list(added),
                "append",
                table.schema(),
                list(self._partition_by),
                commit_properties=self._properties(batch_id),
            )
        except CommitFailedError:
            table.update_incremental()
            if _committed(table, self._application) < batch_id:
                raise
            # Another driver of this lineage was faster.
            self._remove_unnamed(table, files)

    def _remove_unnamed(self, table: DeltaTable, files: Sequence[StagedFile]) -> None:
        """Remove files unless the table has them: the commit may be repeated after it has succeeded."""
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        # Names are unique and plain, while the log encodes folders.
        named = {PurePosixPath(path).name for path in paths}
        for file in files:
            if PurePosixPath(file.path).name not in named:
                delta_files(self._binding).remove(file.path)

    def _application_of(self, lineage: str) -> str:
        return f"penstock/{lineage}/{self._binding.stream}"


def _committed(table: DeltaTable, application: str) -> int:
    found = table.transaction_version(application)
    return -1 if found is None else found


@contextmanager
def _write_errors(binding: DeltaBinding) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise ExternalSystemError(
            f"Sink {binding.stream!r}: a file cannot be written in {binding.directory} ({e.strerror or e}). All "
            "machines of the job must share a folder under that path, and be able to write there."
        ) from e
