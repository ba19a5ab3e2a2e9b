"""Discard sink: records are counted, as in every sink, and dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext

__all__ = ["DiscardSink"]


class DiscardSink:
    """A sink that drops its records."""

    exactly_once = True
    commits_in_tasks = False

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # it keeps nothing
        """Return -1: the sink does not remember batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Do nothing."""

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # all tasks are alike
        """Return a task that drops records."""
        return _DiscardTask()

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: no record becomes visible."""


class _DiscardTask:
    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Drop the records."""

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing."""
