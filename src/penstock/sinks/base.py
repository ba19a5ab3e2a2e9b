"""The interface of sinks: write the records of a batch in tasks, then commit the batch once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.records.types import RecordType

__all__ = [
    "ConnectingSink",
    "Encoder",
    "LockingSink",
    "RecordOrigin",
    "RejectingTask",
    "Rejection",
    "SendingTask",
    "Sink",
    "SinkTask",
    "TaskContext",
    "VersionedSink",
]


@dataclass(frozen=True)
class TaskContext:
    """The writer of a task: the batch, the sink partition, and the job lineage (the whole life of one checkpoint).

    A replay of a batch has the same `batch_id`, `partition` and `lineage`, and the same records in the same order.
    `attempt` differs between attempts, so it can name temporary files. `version` is a number for destinations that keep
    the value with the greatest: it grows from micro-batch to micro-batch and with each repetition by the driver, far
    enough for a task to add 1 for each record, and is never far from the clock (microseconds since 1970). Tasks that
    Spark repeats have the same one; in jobs without a `VersionedSink` it is 0.
    """

    batch_id: int
    partition: int
    attempt: int
    lineage: str
    version: int = 0


class Encoder(Protocol):
    """The encoder of the body of each record, such as its JSON."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bodies of records, as bytes."""


class SinkTask(Protocol):
    """A writer of the records of one sink partition of one batch. Lives in a worker, for one task."""

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Write records (columns of the sink's record type) and their keys (binary, may be None)."""

    def finish(self) -> bytes:
        """Make all records safe, and return a message for `Sink.commit` (empty if it needs none)."""

    def abort(self) -> None:
        """Undo what can be undone, after the task has failed. Never raises."""


@dataclass(frozen=True)
class Rejection:
    """A record that the destination of a sink does not accept.

    `row` is its row in the batch that was written, `raw` the bytes it would have been, and `max_bytes` how many bytes
    the destination accepts.
    """

    row: int
    reason: str
    raw: bytes
    max_bytes: int


@dataclass(frozen=True)
class RecordOrigin:
    """The origin of records: a stream or the output of a step, its partition, and the offset of each record in it.

    `branch` tells apart the ways to a union. The offsets of a source are the same in each replay of its records; those
    of a step in each replay of a micro-batch. In real time the records that a step emits have names, if a sink uses
    them.
    """

    branch: str
    stream: str
    partition: str
    offsets: pa.Array
    is_source: bool
    names: pa.Array | None = None


class RejectingTask(SinkTask):
    """The base class of sink tasks that may not be able to write every record, and may want to know its origin."""

    def __init__(self) -> None:
        self._rejections: list[Rejection] = []
        self._origin: RecordOrigin | None = None

    def come_from(self, origin: RecordOrigin) -> None:
        """Note the origin of the records of the next write."""
        self._origin = origin

    def _reject(self, reasons: Mapping[int, str], body: Callable[[int], bytes], max_bytes: int) -> None:
        """Leave out the records of some rows, of which dead letters keep at most `max_bytes`."""
        self._rejections = [
            Rejection(row, reason, body(row), max_bytes) for row, reason in sorted(reasons.items())
        ]

    def rejections(self) -> list[Rejection]:
        """Return the records that the last write left out. A replay of the batch leaves out the same."""
        found, self._rejections = self._rejections, []
        return found


class SendingTask(RejectingTask):
    """The base class of sink tasks that send records at once, and see them arrive without waiting."""

    def has_arrived(self) -> bool:
        """Return whether all records are safe, so that `finish` need not wait. Raises what `finish` raises."""
        raise NotImplementedError


class Sink(Protocol):
    """A destination of records. The runtime pickles it into workers, so it holds only plain values.

    With `commits_in_tasks` a finished task has made its records visible, once and for all. So tasks begin only when all
    that a replay of the batch needs is on disk.
    """

    exactly_once: bool
    commits_in_tasks: bool

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """Return the newest micro-batch of which the sink may hold a part; -1 if it knows of none. Changes nothing.

        Called in the driver, before `prepare`. A checkpoint that knows less has gone back.
        """

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Prepare to write, once per start and in the driver.

        Check that writing will work (clear errors), choose what must be fixed for this lineage and keep it in a
        file of `checkpoint_folder`, and clear leftovers of earlier attempts.
        """

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """Start writing a partition, in a worker."""

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Make the batch visible, once. Called in the driver.

        Called again with the same batch after a crash. `messages` are in the order of the sink partitions.
        """


@runtime_checkable
class ConnectingSink(Protocol):
    """A sink whose tasks need a connection, which takes a while."""

    def connect(self) -> None:
        """Begin to connect, in a worker that will write, and do not wait for it."""


@runtime_checkable
class LockingSink(Protocol):
    """A sink whose tasks lock what they write until they finish: the task of the next micro-batch may wait for that."""

    holds_locks: bool


class VersionedSink(Sink):
    """The base class of sinks that need a `version` in the context of a task."""
