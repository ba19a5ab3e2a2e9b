"""Format sink: micro-batches written by a format of Spark, at least once."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from penstock.base.durable import make_folder, write_atomically
from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import SparkBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, PenstockError
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.part_files import PartWriter, part_writer
from penstock.sinks.sink_notes import noting_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FormatSink"]

_ROWS: Final = "parquet"


class _Note(msgspec.Struct):
    """The newest micro-batch of a lineage that the format has written."""

    lineage: str
    committed: int = -1


class FormatSink:
    """A sink whose tasks put records into files of the checkpoint, which Spark then appends to the destination.

    A format cannot tell a repeated micro-batch from a new one. The checkpoint notes each write, so a micro-batch is
    written twice only if the driver dies between the write and the note.
    """

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: SparkBinding, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._fields: Final = record_type.field_names
        self._folder: str | None = None
        self._note: _Note | None = None
        if binding.batch_field in self._fields:
            raise BindingError(
                f"Sink {binding.stream!r}: batch_field={binding.batch_field} is a field of its records. Choose another "
                "name."
            )

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # formats keep no number
        """Return -1: the destination does not know micro-batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Make the folder for the files of tasks, and remove what an earlier run has left there."""
        resolve_settings(self._binding.stream, self._binding.options)
        folder = Path(checkpoint_folder) / "format-sinks" / urllib.parse.quote(self._binding.stream, safe="")
        with noting_errors(self._binding.stream):
            make_folder(folder)
            for old in folder.glob(f"*.{_ROWS}"):
                old.unlink(missing_ok=True)
        self._folder = str(folder)
        known = self._read_note()
        self._note = known if known.lineage == lineage else _Note(lineage)

    def check(self, session: SparkSession) -> None:
        """Check that Spark knows the format. Raises BindingError, so that no micro-batch is processed in vain."""
        from penstock.spark.format_errors import JARS_ADVICE, format_reason
        from penstock.spark.types import SPARK_ERRORS

        binding, jvm = self._binding, session._jvm  # noqa: SLF001  # only a write would tell otherwise
        assert jvm is not None, "the session runs"
        sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            sources.lookupDataSource(binding.format, session._jsparkSession.sessionState().conf())  # noqa: SLF001  # as above
        except SPARK_ERRORS as e:
            raise BindingError(
                f"Sink {binding.stream!r}: Spark has no format {binding.format!r}. {format_reason(e)} Correct the name "
                f"in the URI. {JARS_ADVICE}"
            ) from e

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """Return a task that writes one file; none when there are no records."""
        name = f"{context.batch_id:010}-{context.partition:05}-{context.attempt}-{os.getpid()}.{_ROWS}"
        return _FileTask(self._binding, Path(self._prepared()) / name, record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Let Spark append the files of the tasks, unless the checkpoint knows that it did."""
        folder, note = Path(self._prepared()), self._note
        assert note is not None, "the driver has prepared it"
        files = [str(folder / message.decode()) for message in messages if message]
        if not files or batch_id <= note.committed:
            return
        self._append(batch_id, files)
        note.committed = batch_id
        with noting_errors(self._binding.stream):
            write_atomically(folder / "note.json", msgspec.json.encode(note))
            for old in folder.glob(f"{batch_id:010}-*"):
                old.unlink(missing_ok=True)

    def _append(self, batch_id: int, files: Sequence[str]) -> None:
        # Workers, which also have this module, need neither.
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as sf

        from penstock.spark.format_errors import JARS_ADVICE, format_reason
        from penstock.spark.types import SPARK_ERRORS

        binding = self._binding
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        try:
            frame = session.read.parquet(*files).select(*(sf.col(f"`{name}`") for name in self._fields))
            if binding.batch_field is not None:
                frame = frame.withColumn(binding.batch_field, sf.lit(batch_id).cast("bigint"))
            options = resolve_settings(binding.stream, binding.options)
            frame.write.format(binding.format).options(**options).mode("append").save()
        except SPARK_ERRORS as e:
            raise ExternalSystemError(
                f"Sink {binding.stream!r}: Spark cannot write micro-batch {batch_id} in the format "
                f"{binding.format!r}: {format_reason(e)} Correct the options in the URI, or start what it writes to; "
                f"then start the job again. {JARS_ADVICE}"
            ) from e

    def _prepared(self) -> str:
        if self._folder is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        return self._folder

    def _read_note(self) -> _Note:
        path = Path(self._prepared()) / "note.json"
        with noting_errors(self._binding.stream):
            try:
                return msgspec.json.decode(path.read_bytes(), type=_Note)
            except FileNotFoundError:
                return _Note("")
            except msgspec.MsgspecError as e:
                raise CheckpointError(
                    f"The checkpoint's {path} is damaged ({e}). Restore it, or delete it."
                ) from e


class _FileTask:
    """A task that writes its records to a separate file in the checkpoint."""

    def __init__(self, binding: SparkBinding, path: Path, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._path: Final = path
        self._record_type: Final = record_type
        self._file: IO[bytes] | None = None
        self._writer: PartWriter | None = None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # formats have no keys
        if len(batch) == 0:
            return
        with noting_errors(self._binding.stream):
            if self._writer is None:
                self._file = self._path.open("wb")
                self._writer = part_writer("parquet", self._file, self._record_type)
            self._writer.write(batch)

    def finish(self) -> bytes:
        if self._writer is None or self._file is None:
            return b""
        with noting_errors(self._binding.stream):
            self._writer.close()
            self._file.close()
        return self._path.name.encode()

    def abort(self) -> None:
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
            self._path.unlink(missing_ok=True)
