"""What the runtime asks of a sink: write one batch's records in tasks, then commit the batch once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.records.types import RecordType

__all__ = ["RejectingTask", "Rejection", "Sink", "SinkTask", "TaskContext"]


@dataclass(frozen=True)
class TaskContext:
    """Who writes: the batch, the sink partition, and the job lineage (one checkpoint's whole life).

    A replay of a batch comes with the same `batch_id`, `partition` and `lineage`, and the same records in the
    same order. `attempt` differs between attempts, so it can name temporary files.
    """

    batch_id: int
    partition: int
    attempt: int
    lineage: str


class SinkTask(Protocol):
    """Writes the records of one sink partition of one batch. Lives in a worker, for one task."""

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Take records (columns of the sink's record type) and their keys (binary, may be None)."""

    def finish(self) -> bytes:
        """All records are safe; returns a message for `Sink.commit` (empty when there is nothing to say)."""

    def abort(self) -> None:
        """The task failed; undo what can be undone. Never raises."""


@dataclass(frozen=True)
class Rejection:
    """A record that the place behind a sink does not take.

    `row` is its row in the batch that was written, `raw` the bytes it would have been, and `most_bytes` how many of
    them the place takes.
    """

    row: int
    reason: str
    raw: bytes
    most_bytes: int


class RejectingTask(SinkTask):
    """What a task of a sink derives from when it cannot write every record."""

    def __init__(self) -> None:
        self._rejections: list[Rejection] = []

    def rejections(self) -> list[Rejection]:
        """The records of the last write that the task has left out. A replay of the batch leaves out the same."""
        found, self._rejections = self._rejections, []
        return found


class Sink(Protocol):
    """A place where records leave. Pickled into workers by the runtime; holds only plain values.

    With `commits_in_tasks` a task that is finished has made its records visible, once and for all; so tasks begin when
    all that a replay of the batch needs is on disk.
    """

    exactly_once: bool
    commits_in_tasks: bool

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """The newest micro-batch of which it may hold a part, as it knows by itself; -1 is none. Changes nothing.

        Asked in the driver, before `prepare`. A checkpoint that knows less has gone back.
        """

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Prepare, once per start and in the driver.

        Check that writing will work (clear errors), choose what must be fixed for this lineage and keep it in a
        file of `checkpoint_folder`, clear leftovers of earlier attempts.
        """

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """Start writing a partition, in a worker."""

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """In the driver: make the batch visible, once.

        Called again with the same batch after a crash. `messages` come in the order of the sink partitions.
        """
