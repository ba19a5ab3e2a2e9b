"""Receipts of a job: written once for each micro-batch to its checkpoint, and to a bound sink."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.commands.receipt_segments import (
    DEFAULT_RECEIPTS_BYTES,
    SegmentWriter,
    kept_receipts,
    receipts_backwards,
)
from penstock.control.encoded_receipts import BatchReceipts
from penstock.control.receipts import Receipt
from penstock.errors import CheckpointError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sinks.base import RejectingTask, Sink, TaskContext

__all__ = ["RECEIPT_TYPE", "ReceiptWriter", "by_batch", "has_receipts", "plain"]

RECEIPT_TYPE: Final = record_type(Receipt)
# The length of the reason sent to a sink for which the whole receipt is too large.
_CUT_REASON: Final = 200


class ReceiptWriter:
    """Writes the receipts of each micro-batch exactly once, even if it is replayed after a crash.

    The checkpoint keeps the newest, up to `max_bytes`; `bound` is the sink that gets them too, if any.
    """

    def __init__(
        self,
        checkpoint: Path,
        lineage: str,
        bound: Sink | None,
        max_bytes: int = DEFAULT_RECEIPTS_BYTES,
    ) -> None:
        self.bound: Final = bound
        self._checkpoint: Final = checkpoint
        self._lineage: Final = lineage
        self._max_bytes: Final = max_bytes
        self._segments: Final = SegmentWriter(checkpoint, max_bytes=max_bytes)

    def for_outputs(self, lineage: str) -> ReceiptWriter:
        """Return a writer for a sink that knows the job by another id."""
        return ReceiptWriter(self._checkpoint, lineage, self.bound, self._max_bytes)

    def prepare(self) -> None:
        """Prepare for writing, once per start."""
        self._segments.open()
        if self.bound is not None:
            self.bound.prepare(self._lineage, str(self._checkpoint))

    def write(self, batch_id: int, receipts: BatchReceipts) -> None:
        """Write the receipts of a micro-batch; after a crash this is called again with the same ones."""
        if not receipts:
            return
        try:
            self._segments.append(batch_id, receipts.lines, receipts.hashes)
        except OSError as e:
            raise CheckpointError(
                f"The receipts of micro-batch {batch_id} cannot be written to {kept_receipts(self._checkpoint)} "
                f"({e.strerror or e}). Free some space there, and start the job again."
            ) from e
        if self.bound is not None:
            self._send(self.bound, batch_id, receipts.receipts)

    def _send(self, sink: Sink, batch_id: int, receipts: Sequence[Receipt]) -> None:
        keys = pa.array([receipt.id.encode() for receipt in receipts], pa.binary())
        task = sink.task(TaskContext(batch_id, 0, 0, self._lineage), RECEIPT_TYPE)
        try:
            task.write(RECEIPT_TYPE.batch(receipts), keys)
            if isinstance(task, RejectingTask) and (rejections := task.rejections()):
                self._write_cut(task, [(receipts[found.row], keys[found.row]) for found in rejections])
            message = task.finish()
        except BaseException:
            task.abort()
            raise
        sink.commit(batch_id, [message])

    def _write_cut(self, task: RejectingTask, rejected: Sequence[tuple[Receipt, Any]]) -> None:
        """Write receipts that are too large for their sink without details; the checkpoint keeps them whole."""
        cut = [
            msgspec.structs.replace(
                receipt,
                reason=f"{receipt.reason[:_CUT_REASON]} (cut: the whole receipt is in the checkpoint)".strip(),
                details="",
                degraded=[],
            )
            for receipt, _ in rejected
        ]
        task.write(RECEIPT_TYPE.batch(cut), pa.array([key.as_py() for _, key in rejected], pa.binary()))
        if refused := task.rejections():
            raise ExternalSystemError(
                f"The receipt of the command {cut[refused[0].row].id!r} cannot be written, although it was cut: "
                f"{refused[0].reason} Bind receipts to a sink that takes larger records."
            )


def has_receipts(checkpoint: Path, batch_id: int) -> bool:
    """Return whether a checkpoint keeps receipts of a micro-batch."""
    batches = (receipt.batch for _, receipt in receipts_backwards(checkpoint))
    return batch_id in itertools.takewhile(lambda batch: batch >= batch_id, batches)


def by_batch(receipts: Iterable[Receipt]) -> Iterator[tuple[int, list[Receipt]]]:
    """Group receipts by micro-batch, with its number."""
    for batch, found in itertools.groupby(receipts, key=lambda receipt: receipt.batch):
        yield batch, list(found)


def plain(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON values, with all fields."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(receipt))
    found["details"] = msgspec.json.decode(receipt.details) if receipt.details else None
    return found
