"""Record sinks: the base class of custom sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

from penstock.connectors.record_block import Block
from penstock.sinks.base import TaskContext

__all__ = ["RecordSink", "SinkGuarantee"]

SinkGuarantee: TypeAlias = Literal[
    "exactly once", "idempotent by key", "at least once with ids", "at least once"
]


class RecordSink(ABC):
    """A destination of records.

    Derive from it, and bind a sink to `python:module:Class?option=value`, with options as for `RecordLog`.

    Each task has an object of its own: it is made, then `begin`, `write` for each block, `finish`, `close`. A task that
    fails is aborted and runs again, and after a crash the newest micro-batch is written again, with the same
    `batch_id`, `partition`, `lineage` and records. The driver, where the job was started, makes an object for each call
    of `newest`, `prepare` and `commit`. All calls of an object come from one thread.

    `guarantee` is what the class states, and what the job shows:

    - "exactly once": a micro-batch that is there already is skipped. Write in `finish`, in one transaction with
      `batch_id`, unless a batch of the same `lineage` and `partition` that is as new is there; or stage files in
      `finish`, and publish them in `commit`, once for each batch.
    - "idempotent by key": a record replaces the stored one with its key.
    - "at least once with ids": records are written with `block.ids`, by which readers skip copies.
    - "at least once": the newest micro-batch may be there twice after a crash.

    >>> class Printer(RecordSink):
    ...     def write(self, block):
    ...         for row in block.rows:
    ...             print("room", row["room"])
    >>> Printer().write(Block(pa.record_batch({"room": [5]})))
    room 5
    """

    guarantee: ClassVar[SinkGuarantee] = "at least once"

    def begin(self, context: TaskContext) -> None:  # noqa: B027  # most need not know
        """Begin to write the records of a sink partition in a micro-batch."""

    @abstractmethod
    def write(self, block: Block) -> None:
        """Write records, or keep them for `finish`. A record that cannot be written is rejected: `block.reject`."""

    def finish(self) -> str:
        """Make all records of the task safe, and return a message for `commit` ("" if it needs none)."""
        return ""

    def abort(self) -> None:  # noqa: B027  # what was written may stay
        """Undo the writes that can be undone, after the task has failed; not called after `finish`."""

    def commit(self, batch_id: int, messages: Sequence[str]) -> None:  # noqa: B027  # most write in tasks
        """Make a micro-batch visible, once. Called in the driver; again with the same batch after a crash.

        `messages` are those of the tasks that have one, in the order of the sink partitions.
        """

    def prepare(self, lineage: str) -> None:  # noqa: B027  # some need nothing
        """Check that writing will work, and create what is missing. Called in the driver at each start.

        The lineage is the whole life of one checkpoint.
        """

    def newest(self, lineage: str) -> int:  # noqa: ARG002  # most do not know
        """Return the newest micro-batch of which the destination may hold a part; -1 if none, or if it is not known.

        Called in the driver before `prepare`. A checkpoint that is older than this was restored from a backup, and the
        start is refused.
        """
        return -1

    def close(self) -> None:  # noqa: B027  # some have nothing to close
        """Close what the object has opened. Called last, also after `abort`."""
