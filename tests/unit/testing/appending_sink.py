"""A sink that appends lines to a file at once, and so duplicates records in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sinks.base import TaskContext

__all__ = ["AppendingSink"]


class AppendingSink:
    """The sink, which declares a guarantee that it does not keep."""

    exactly_once = True
    commits_in_tasks = True

    def __init__(self, file: Path) -> None:
        self._file = file

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """Return nothing: the file has no number."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Create the file."""
        self._file.touch()

    def task(self, context: TaskContext, record_type: RecordType) -> AppendingTask:
        """Return a task that appends."""
        return AppendingTask(self._file)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: all records are there."""


class AppendingTask:
    """A task whose records stay, whatever its outcome."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Append a line for each record."""
        with self._file.open("a") as file:
            file.writelines(f"{row['id']} {row['value']}\n" for row in batch.to_pylist())

    def finish(self) -> bytes:
        """Do nothing."""
        return b""

    def abort(self) -> None:
        """Do nothing: the records cannot be removed."""
