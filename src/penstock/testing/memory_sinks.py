"""Memory sinks: keep the records that the tasks of a micro-batch write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.records.types import RecordType
from penstock.sinks.base import TaskContext

__all__ = ["MemorySink", "MemoryTask", "Written"]


@dataclass
class MemoryTask:
    """The writes of one task."""

    sink: MemorySink
    context: TaskContext
    batches: list[tuple[pa.RecordBatch, pa.Array | None]] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Keep records, and their keys if the sink takes keys."""
        if self.sink.fails_at_write:
            raise OSError("the disk is full")
        self.batches.append((batch, keys))

    def finish(self) -> bytes:
        """Hand over what was written to the sink."""
        if self.sink.fails_at_finish:
            raise OSError("the disk is full")
        self.sink.finished.append(self)
        return f"partition {self.context.partition}".encode()

    def abort(self) -> None:
        """Discard what was written."""
        self.sink.aborted.append(self)


@dataclass
class MemorySink:
    """A sink that keeps its tasks. It fails on request, as a sink with a full disk does."""

    exactly_once: bool = True
    commits_in_tasks: bool = False
    fails_at_write: bool = False
    fails_at_finish: bool = False
    finished: list[MemoryTask] = field(default_factory=list)
    aborted: list[MemoryTask] = field(default_factory=list)

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # as Sink
        """Return -1: the sink has no micro-batch from before the run."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Do nothing: a sink in memory needs no preparation."""

    def task(self, context: TaskContext, record_type: RecordType) -> MemoryTask:  # noqa: ARG002  # as Sink
        """Return the writer of one task."""
        return MemoryTask(self, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the sink already has what finished tasks wrote."""


@dataclass
class Written:
    """The records that a sink received in one micro-batch, in partition order."""

    record_type: RecordType
    batches: list[tuple[pa.RecordBatch, pa.Array | None]] = field(default_factory=list)

    @property
    def records(self) -> list[Any]:
        """The records, as objects of the sink's schema."""
        return [record for batch, _ in self.batches for record in self.record_type.objects(batch)]

    @property
    def keys(self) -> list[bytes | None]:
        """The message keys of the records, for a sink that takes keys."""
        return [key for _, keys in self.batches if keys is not None for key in keys.to_pylist()]

    @property
    def data(self) -> list[tuple[bytes, list[bytes | None] | None]]:
        """Every byte that was written."""
        return [
            (batch.serialize().to_pybytes(), keys.to_pylist() if keys is not None else None)
            for batch, keys in self.batches
        ]
