"""Rejected records: make dead letters of records that a sink rejects, and cut those too large for dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from penstock.errors import ExternalSystemError
from penstock.operators.record_blocks import OFFSET, DeadLetter
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE, PackedRow, place_of
from penstock.sinks.base import RejectingTask, Rejection

__all__ = ["rejected_letters", "write_cut"]

_letters: Final = msgspec.json.Decoder(DeadLetter)
# Shares of the size limit: a byte takes 1.34 bytes in base64, and a character up to 6 in JSON.
_RAW_SHARE: Final = 4
_REASON_SHARE: Final = 16


def rejected_letters(
    row: PackedRow, batch: pa.RecordBatch, rejections: Sequence[Rejection]
) -> list[DeadLetter]:
    """Return the dead letters of records that a sink rejected, with the bytes that were to be written."""
    _, stream, partition = place_of(row.partition)
    offsets = batch.column(OFFSET)
    return [
        DeadLetter(found.reason, stream, row.destination, partition, offsets[found.row].as_py(), found.raw)
        for found in rejections
    ]


def write_cut(task: RejectingTask, rejections: Sequence[Rejection]) -> None:
    """Write dead letters that were rejected themselves, with record and reason cut to the size that the sink takes.

    Raises ExternalSystemError when the sink rejects a cut dead letter too.
    """
    letters = [_cut(_letters.decode(found.raw), found) for found in rejections]
    task.write(DEAD_LETTER_TYPE.batch(letters), None)
    if refused := task.rejections():
        raise ExternalSystemError(
            f"A dead letter cannot be written, although it was cut: {refused[0].reason} Bind dead-letters to a place "
            "that takes more."
        )


def _cut(letter: DeadLetter, rejection: Rejection) -> DeadLetter:
    most = rejection.max_bytes
    reason = letter.reason[: most // _REASON_SHARE]
    raw = letter.raw[: most // _RAW_SHARE]
    note = f"(cut: the record has {len(letter.raw)} bytes, and a dead letter here at most {most})"
    return msgspec.structs.replace(letter, reason=f"{reason} {note}", raw=raw)
