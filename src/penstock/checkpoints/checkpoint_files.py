"""Checkpoint files: penstock's own files in a checkpoint besides Spark's part, and whether a job can start from it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.spark_checkpoint import Expected, inspect
from penstock.checkpoints.spark_state_files import damage
from penstock.checkpoints.state_place import state_place
from penstock.errors import CheckpointError
from penstock.runtime.cuts import batch_numbers, newest_batch, read_offsets, runs_in_real_time
from penstock.sources.found_files import files_found
from penstock.sources.journal import journal_end
from penstock.sources.offset_fields import PARTITIONS
from penstock.streams.own_streams import STARTS

__all__ = [
    "COUNTS_FILE",
    "check_before_commit",
    "check_checkpoint",
    "mark_begun",
    "newest_begun",
    "newest_counted",
    "stored_counts",
    "take_back_mark",
]

COUNTS_FILE: Final = "counts.json"
_MARK_FILE: Final = "begun.json"
_MARK_BYTES: Final = 32
_LOOKS_AT_REST: Final = 3
_MAX_LOOKS: Final = 100
_BETWEEN_LOOKS_S: Final = 0.05


class _Batch(msgspec.Struct, frozen=True):
    """A file that names a micro-batch."""

    batch: int


def check_checkpoint(checkpoint: Checkpoint, retained: int, *, thorough: bool = False) -> None:
    """Raise CheckpointError, which names the file, unless the checkpoint is new or the job can resume from it.

    This takes milliseconds; with `thorough` it also reads the bytes of the state.
    """
    lineage = checkpoint.stored_lineage()
    if lineage is None:
        return
    # On file systems without working locks, a run that is about to lose the checkpoint may still change it. Damage
    # counts only if nothing changes between looks.
    seen, at_rest = None, 0
    for look in range(_MAX_LOOKS):
        try:
            _check(checkpoint, lineage, retained, thorough=thorough)
        except CheckpointError:
            # The newest planned and committed micro-batches show whether a run is at work.
            before, seen = (
                seen,
                [newest_batch(checkpoint.spark_folder / log) for log in ("offsets", "commits")],
            )
            at_rest = at_rest + 1 if seen == before else 1
            if at_rest == _LOOKS_AT_REST or look == _MAX_LOOKS - 1:
                raise
            time.sleep(_BETWEEN_LOOKS_S)
        else:
            return


def check_before_commit(checkpoint: Checkpoint, lineage: Lineage, retained: int, number: int) -> None:
    """Raise CheckpointError unless the job can repeat a micro-batch that was begun, given by Spark's number.

    Ignores everything after its plan.
    """
    _check(checkpoint, lineage, retained, before_commit=number)


def _check(
    checkpoint: Checkpoint,
    lineage: Lineage,
    retained: int,
    *,
    thorough: bool = False,
    before_commit: int | None = None,
) -> None:
    begun = newest_begun(checkpoint) - lineage.first_batch
    in_real_time = runs_in_real_time(checkpoint.spark_folder)
    # In real time Spark has a single source, and penstock keeps the positions.
    is_here = state_place(checkpoint.folder) is None
    expected = Expected(1 if in_real_time else len(lineage.streams), begun, retained, before_commit, is_here)
    found = inspect(checkpoint.spark_folder, expected, thorough=thorough)
    offsets: Sequence[Any] = found.offsets
    if in_real_time and found.planned >= 0:
        positions = read_offsets(checkpoint.spark_folder / "offsets" / str(found.planned), lineage.streams)
        offsets = [positions.get(stream) for stream in lineage.streams]
    for stream, offset in zip(lineage.streams, offsets, strict=False):
        _check_source(checkpoint.folder / "sources", stream, offset)
    if not batch_numbers(checkpoint.spark_folder / "commits"):
        _check_beginnings(checkpoint.folder / "sources", lineage.streams, offsets)


def _check_beginnings(folder: Path, streams: Sequence[str], offsets: Sequence[Any]) -> None:
    """For the first micro-batch, check that the notes of the first offsets of Kafka streams and custom logs exist.

    Without its note, a stream would begin where its topic ends now, perhaps after what was planned.
    """
    for stream, offset in zip(streams, offsets, strict=False):
        if not isinstance(offset, dict) or "position" in offset:
            continue
        path = folder / (f"{stream}.begins" if PARTITIONS in offset else f"{stream}.topic")
        if not path.exists():
            raise damage(path, "is missing")


def mark_begun(checkpoint: Checkpoint, batch_id: int) -> None:
    """Mark durably that outputs of a micro-batch may exist from now on. The mark never goes back."""
    path = checkpoint.folder / _MARK_FILE
    content = msgspec.json.encode(_Batch(batch_id)).ljust(_MARK_BYTES)
    try:
        mark = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        write_atomically(path, content)
        return
    try:
        if msgspec.json.decode(os.pread(mark, _MARK_BYTES, 0), type=_Batch).batch < batch_id:
            # In place, since the disk writes this few bytes whole or not at all, and no directory entry changes.
            os.pwrite(mark, content, 0)
            os.fdatasync(mark)
    finally:
        os.close(mark)


def take_back_mark(checkpoint: Checkpoint, batch_id: int) -> None:
    """Mark durably that no output of a micro-batch exists, before its plan is taken back."""
    if newest_begun(checkpoint) >= batch_id:
        write_atomically(
            checkpoint.folder / _MARK_FILE, msgspec.json.encode(_Batch(batch_id - 1)).ljust(_MARK_BYTES)
        )


def stored_counts(checkpoint: Checkpoint, kind: Any) -> Any:
    """Return the counts of a checkpoint as a type, None without any. Raises CheckpointError if they are damaged."""
    return _load(
        checkpoint.folder / COUNTS_FILE,
        kind,
        "Restore the file from a copy of the checkpoint, or delete it: the counts that the job shows then restart.",
    )


def newest_begun(checkpoint: Checkpoint) -> int:
    """Return the newest micro-batch that may have reached an output; -1 if none has.

    The mark is set before any output; if somebody has deleted the mark, the counts say the same.
    """
    marked = _load(
        checkpoint.folder / _MARK_FILE,
        _Batch,
        "Restore the file from a copy of the checkpoint, or delete it if the folders offsets and commits are whole.",
    )
    return max(-1 if marked is None else marked.batch, newest_counted(checkpoint))


def newest_counted(checkpoint: Checkpoint) -> int:
    """Return the newest micro-batch whose outputs were all committed; -1 if there is none."""
    counted = stored_counts(checkpoint, _Batch)
    return -1 if counted is None else counted.batch


def _load(path: Path, kind: Any, remedy: str) -> Any:
    try:
        data = path.read_bytes()
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise damage(path, f"cannot be read ({e})", remedy) from e


def _check_source(folder: Path, stream: str, offset: Any) -> None:
    """Check that the file list or the journal of a stream has all that the job has read. Kafka keeps that itself."""
    position = offset.get("position") if isinstance(offset, dict) else None
    if not isinstance(position, int) or position == 0 or stream == STARTS:
        return
    files, journal = folder / f"{stream}.files", folder / f"{stream}.journal"
    kept = {}
    if files.exists():
        kept[files] = _files_found(files)
    if journal.exists():
        kept[journal] = journal_end(journal)
    if not kept:
        what = f"is missing, or {journal.name}, though the job has read the stream {stream!r}"
        raise damage(files, what)
    path, end = max(kept.items(), key=lambda item: item[1])
    if end < position:
        unit = "bytes" if path is journal else "files"
        raise damage(path, f"has {end} of the {position} {unit} that the job has read")


def _files_found(path: Path) -> int:
    try:
        return files_found(path)
    except OSError as e:
        raise damage(path, f"cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise damage(path, f"cannot be read ({e})") from e
