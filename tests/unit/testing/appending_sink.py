"""A sink that appends lines to a file as they come, and so writes records of a replay again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sinks.base import TaskContext

__all__ = ["AppendingSink"]


class AppendingSink:
    """The sink; it claims what it does not keep."""

    exactly_once = True
    commits_in_tasks = True

    def __init__(self, file: Path) -> None:
        self._file = file

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """The file keeps no number."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Make the file."""
        self._file.touch()

    def task(self, context: TaskContext, record_type: RecordType) -> AppendingTask:
        """A task that appends."""
        return AppendingTask(self._file)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Everything is there."""


class AppendingTask:
    """A task whose records stay, whatever becomes of it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Append a line for each record."""
        with self._file.open("a") as file:
            file.writelines(f"{row['id']} {row['value']}\n" for row in batch.to_pylist())

    def finish(self) -> bytes:
        """Nothing is left to do."""
        return b""

    def abort(self) -> None:
        """Nothing is undone."""
