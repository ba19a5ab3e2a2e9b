"""Receipts of a job: written once for each micro-batch into its checkpoint, and to the sink that they are bound to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.control.receipts import Receipt, Story
from penstock.durable import write_atomically
from penstock.errors import CheckpointError
from penstock.records import record_type
from penstock.sinks.base import Sink, TaskContext
from penstock.streams.graph import RECEIPTS

__all__ = [
    "RECEIPT_TYPE",
    "ReceiptWriter",
    "kept_receipts",
    "plain",
    "read_receipts",
    "receipt_files",
    "receipts_in",
]

RECEIPT_TYPE: Final = record_type(Receipt)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Receipt)


def kept_receipts(checkpoint: Path) -> Path:
    """The folder in a checkpoint that keeps the receipts."""
    return checkpoint / RECEIPTS


class ReceiptWriter:
    """Writes the receipts of each micro-batch, also when it is replayed after a crash, exactly once.

    They are kept in the checkpoint, one file for each micro-batch; `bound` is the sink that they go to besides, if any.
    """

    def __init__(self, checkpoint: Path, lineage: str, bound: Sink | None) -> None:
        self.bound: Final = bound
        self._checkpoint: Final = checkpoint
        self._lineage: Final = lineage

    def for_outputs(self, lineage: str) -> ReceiptWriter:
        """The same for a sink that knows the job under another id."""
        return ReceiptWriter(self._checkpoint, lineage, self.bound)

    def prepare(self) -> None:
        """Prepare, once per start."""
        kept_receipts(self._checkpoint).mkdir(parents=True, exist_ok=True)
        if self.bound is not None:
            self.bound.prepare(self._lineage, str(self._checkpoint))

    def write(self, batch_id: int, stories: Sequence[Story]) -> None:
        """Write the receipts of a micro-batch; called again with the same after a crash."""
        if not stories:
            return
        path = kept_receipts(self._checkpoint) / _receipts_of(batch_id)
        if not path.exists():
            write_atomically(path, b"".join(story.lines for story in stories))
        if self.bound is not None:
            self._send(self.bound, batch_id, [receipt for story in stories for receipt in story.receipts])

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


def has_receipts(checkpoint: Path, batch_id: int) -> bool:
    """Whether a checkpoint keeps receipts of a micro-batch."""
    return (kept_receipts(checkpoint) / _receipts_of(batch_id)).exists()


def _receipts_of(batch_id: int) -> str:
    return f"part-{batch_id:010}.jsonl"


def receipt_files(checkpoint: Path, after: str = "") -> list[str]:
    """The names of the files of receipts that a checkpoint keeps, in the order in which they were written.

    Only those that were written after the file `after`, if it is given.
    """
    try:
        names = os.listdir(kept_receipts(checkpoint))  # noqa: PTH208  # there may be hundreds of thousands
    except FileNotFoundError:
        return []
    return sorted(n for n in names if n > after and n.startswith("part-") and n.endswith(".jsonl"))


def receipts_in(checkpoint: Path, name: str, command_id: str | None = None) -> list[Receipt]:
    """The receipts in one file, in order; with an id only those of that command.

    Raises CheckpointError when the file cannot be read.
    """
    path = kept_receipts(checkpoint) / name
    try:
        data = path.read_bytes()
        # Most files are not asked for, and looking for bytes is faster than decoding.
        if command_id is not None and _encoder.encode(command_id) not in data:
            return []
        found = [_decoder.decode(line) for line in data.splitlines()]
    except (OSError, msgspec.MsgspecError) as e:
        raise CheckpointError(
            f"The receipts in {path} cannot be read: {e}. Restore the file, or delete it."
        ) from e
    return found if command_id is None else [receipt for receipt in found if receipt.id == command_id]


def read_receipts(checkpoint: Path, after: str = "") -> Iterator[tuple[str, list[Receipt]]]:
    """The receipts that a checkpoint keeps, file by file in order, of the files whose names are beyond `after`."""
    for name in receipt_files(checkpoint, after):
        yield name, receipts_in(checkpoint, name)


def plain(receipt: Receipt) -> dict[str, Any]:
    """A receipt as plain values, with all fields, its details as what they are."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(receipt))
    found["details"] = msgspec.json.decode(receipt.details) if receipt.details else None
    return found
