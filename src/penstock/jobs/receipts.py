"""Receipts of a job: written once for each micro-batch into its checkpoint, and to the sink that they are bound to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.control.receipts import Receipt, Story
from penstock.jobs.checkpoint import write_atomically
from penstock.records import record_type
from penstock.sinks.base import Sink, TaskContext
from penstock.streams.graph import RECEIPTS

__all__ = ["RECEIPT_TYPE", "ReceiptWriter", "kept_receipts", "read_receipts"]

RECEIPT_TYPE: Final = record_type(Receipt)
_decoder: Final = msgspec.json.Decoder(Receipt)


def kept_receipts(checkpoint: Path) -> Path:
    """The folder in a checkpoint that keeps the receipts."""
    return checkpoint / RECEIPTS


class ReceiptWriter:
    """Writes the receipts of each micro-batch, also when it is replayed after a crash, exactly once.

    They are kept in the checkpoint, one file for each micro-batch; `bound` is the sink that they go to besides, if any.
    """

    def __init__(self, checkpoint: Path, lineage: str, bound: Sink | None) -> None:
        self._bound: Final = bound
        self._checkpoint: Final = checkpoint
        self._lineage: Final = lineage

    def prepare(self) -> None:
        """Prepare, once per start."""
        kept_receipts(self._checkpoint).mkdir(parents=True, exist_ok=True)
        if self._bound is not None:
            self._bound.prepare(self._lineage, str(self._checkpoint))

    def write(self, batch_id: int, stories: Sequence[Story]) -> None:
        """Write the receipts of a micro-batch; called again with the same after a crash."""
        if not stories:
            return
        path = kept_receipts(self._checkpoint) / f"part-{batch_id:010}.jsonl"
        if not path.exists():
            write_atomically(path, b"".join(story.lines for story in stories))
        if self._bound is not None:
            self._send(self._bound, batch_id, [receipt for story in stories for receipt in story.receipts])

    def _send(self, sink: Sink, batch_id: int, receipts: Sequence[Receipt]) -> None:
        keys = pa.array([receipt.id.encode() for receipt in receipts], pa.binary())
        task = sink.task(TaskContext(batch_id, 0, 0, self._lineage), RECEIPT_TYPE)
        try:
            task.write(RECEIPT_TYPE.batch(receipts), keys)
            message = task.finish()
        except BaseException:
            task.abort()
            raise
        sink.commit(batch_id, [message])


def read_receipts(checkpoint: Path, after: str = "") -> Iterator[tuple[str, list[Receipt]]]:
    """The receipts that a checkpoint keeps, file by file in order, of the files whose names are beyond `after`."""
    for path in sorted(kept_receipts(checkpoint).glob("part-*.jsonl")):
        if path.name > after:
            yield path.name, [_decoder.decode(line) for line in path.read_bytes().splitlines()]


def plain(receipt: Receipt) -> dict[str, Any]:
    """A receipt as plain values, its details as what they are."""
    found: dict[str, Any] = msgspec.to_builtins(receipt)
    if receipt.details:
        found["details"] = msgspec.json.decode(receipt.details)
    return found
