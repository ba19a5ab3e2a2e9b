"""Discard sink: records are counted, as in every sink, and kept nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext

__all__ = ["DiscardSink"]


class DiscardSink:
    """Takes records and keeps none."""

    exactly_once = True
    commits_in_tasks = False

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # it keeps nothing
        """It does not know what it was given."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Nothing to prepare."""

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # all tasks are alike
        """A task that takes records."""
        return _DiscardTask()

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Nothing to make visible."""


class _DiscardTask:
    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Let them go."""

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Nothing to undo."""
