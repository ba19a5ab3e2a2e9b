"""Receipts of a job: written once for each micro-batch into its checkpoint, and to the sink that they are bound to."""

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
    receipts_in,
    segment_names,
)
from penstock.control.encoded_receipts import BatchReceipts
from penstock.control.receipts import Receipt
from penstock.errors import CheckpointError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sinks.base import RejectingTask, Sink, TaskContext

__all__ = ["RECEIPT_TYPE", "ReceiptWriter", "by_batch", "has_receipts", "plain", "read_receipts"]

RECEIPT_TYPE: Final = record_type(Receipt)
# So much of a reason goes to a sink for which the whole receipt is too large.
_CUT_REASON: Final = 200


class ReceiptWriter:
    """Writes the receipts of each micro-batch, also when it is replayed after a crash, exactly once.

    They are kept in the checkpoint, the newest up to `most_bytes`; `bound` is the sink that they go to besides, if any.
    """

    def __init__(
        self,
        checkpoint: Path,
        lineage: str,
        bound: Sink | None,
        most_bytes: int = DEFAULT_RECEIPTS_BYTES,
    ) -> None:
        self.bound: Final = bound
        self._checkpoint: Final = checkpoint
        self._lineage: Final = lineage
        self._most_bytes: Final = most_bytes
        self._segments: Final = SegmentWriter(checkpoint, most_bytes=most_bytes)

    def for_outputs(self, lineage: str) -> ReceiptWriter:
        """The same for a sink that knows the job under another id."""
        return ReceiptWriter(self._checkpoint, lineage, self.bound, self._most_bytes)

    def prepare(self) -> None:
        """Prepare, once per start."""
        self._segments.open()
        if self.bound is not None:
            self.bound.prepare(self._lineage, str(self._checkpoint))

    def write(self, batch_id: int, told: BatchReceipts) -> None:
        """Write the receipts of a micro-batch; called again with the same after a crash."""
        if not told:
            return
        try:
            self._segments.append(batch_id, told.lines, told.hashes)
        except OSError as e:
            raise CheckpointError(
                f"The receipts of micro-batch {batch_id} cannot be written to {kept_receipts(self._checkpoint)} "
                f"({e.strerror or e}). Make room there, and start the job again."
            ) from e
        if self.bound is not None:
            self._send(self.bound, batch_id, told.receipts)

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
        """Write receipts that were too large for their sink without their details, which the checkpoint keeps."""
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
                f"The receipt of the command {cut[refused[0].row].id!r} cannot be written, though it was cut: "
                f"{refused[0].reason} Bind receipts to a place that takes more."
            )


def has_receipts(checkpoint: Path, batch_id: int) -> bool:
    """Whether a checkpoint keeps receipts of a micro-batch."""
    batches = (receipt.batch for _, receipt in receipts_backwards(checkpoint))
    return batch_id in itertools.takewhile(lambda batch: batch >= batch_id, batches)


def read_receipts(checkpoint: Path) -> Iterator[tuple[int, list[Receipt]]]:
    """The receipts that a checkpoint keeps, with the number of their micro-batch, in order."""
    kept = (receipt for name in segment_names(checkpoint) for receipt in receipts_in(checkpoint, name))
    yield from by_batch(kept)


def by_batch(receipts: Iterable[Receipt]) -> Iterator[tuple[int, list[Receipt]]]:
    """Receipts of one micro-batch after the other, with its number."""
    for batch, found in itertools.groupby(receipts, key=lambda receipt: receipt.batch):
        yield batch, list(found)


def plain(receipt: Receipt) -> dict[str, Any]:
    """A receipt as plain values, with all fields, its details as what they are."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(receipt))
    found["details"] = msgspec.json.decode(receipt.details) if receipt.details else None
    return found
