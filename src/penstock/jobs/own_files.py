"""Own files: what penstock keeps in a checkpoint besides Spark's part, and whether it can be started from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.durable import sync_folder
from penstock.errors import CheckpointError
from penstock.jobs.checkpoint import Checkpoint, Lineage
from penstock.jobs.inspection import Expected, inspect
from penstock.jobs.state_files import damage
from penstock.sources.journal import journal_end
from penstock.streams.graph import STARTS

__all__ = ["COUNTS_FILE", "check_checkpoint", "mark_begun", "newest_begun", "stored_counts"]

COUNTS_FILE: Final = "counts.json"
_MARK_FILE: Final = "begun.json"
_CHUNK_BYTES: Final = 1 << 20
_LOOKS: Final = 3
_BETWEEN_LOOKS_S: Final = 0.05


class _Batch(msgspec.Struct, frozen=True):
    """A file that names a micro-batch."""

    batch: int


def check_checkpoint(checkpoint: Checkpoint, retained: int, *, thorough: bool = False) -> None:
    """Raise CheckpointError, which names the file, unless the job can go on from a checkpoint, or it is a new one.

    That takes milliseconds; with `thorough` the bytes of the state are read, too.
    """
    lineage = checkpoint.stored_lineage()
    if lineage is None:
        return
    # Where locks do not reach, a run that is about to lose the checkpoint may change it at this very moment.
    for look in range(_LOOKS):
        try:
            _check(checkpoint, lineage, retained, thorough=thorough)
        except CheckpointError:
            if look == _LOOKS - 1:
                raise
            time.sleep(_BETWEEN_LOOKS_S)
        else:
            return


def _check(checkpoint: Checkpoint, lineage: Lineage, retained: int, *, thorough: bool) -> None:
    expected = Expected(len(lineage.streams), newest_begun(checkpoint) - lineage.first_batch, retained)
    found = inspect(checkpoint.spark_folder, expected, thorough=thorough)
    for stream, offset in zip(lineage.streams, found.offsets, strict=False):
        _check_source(checkpoint.folder / "sources", stream, offset)


def mark_begun(checkpoint: Checkpoint, batch_id: int) -> None:
    """Note durably, once and before the first output is written, that the job does not begin from nothing any more."""
    if not (checkpoint.folder / _MARK_FILE).exists():
        checkpoint.save(_MARK_FILE, _Batch(batch_id))
        sync_folder(checkpoint.folder)


def stored_counts(checkpoint: Checkpoint, kind: Any) -> Any:
    """The counts of a checkpoint as a type, or None. CheckpointError when they are damaged."""
    return _load(
        checkpoint.folder / COUNTS_FILE,
        kind,
        "Restore the file from a copy of the checkpoint, or delete it: the counts that the job shows begin anew then.",
    )


def newest_begun(checkpoint: Checkpoint) -> int:
    """The newest micro-batch that may have reached an output, as far as penstock knows; -1 is none.

    The mark never goes back; the counts are newer, but a power cut may take back the last of them.
    """
    marked = _load(
        checkpoint.folder / _MARK_FILE,
        _Batch,
        "Restore the file from a copy of the checkpoint, or delete it if the folders offsets and commits are whole.",
    )
    counted = stored_counts(checkpoint, _Batch)
    return max((known.batch for known in (marked, counted) if known is not None), default=-1)


def _load(path: Path, kind: Any, remedy: str) -> Any:
    try:
        data = path.read_bytes()
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise damage(path, f"cannot be read ({e})", remedy) from e


def _check_source(folder: Path, stream: str, offset: Any) -> None:
    """What a stream has read is in its list of files, or in its journal; Kafka keeps that itself."""
    position = offset.get("position") if isinstance(offset, dict) else None
    if not isinstance(position, int) or position == 0 or stream == STARTS:
        return
    files, journal = folder / f"{stream}.files", folder / f"{stream}.journal"
    kept = {}
    if files.exists():
        kept[files] = _lines(files)
    if journal.exists():
        kept[journal] = journal_end(journal)
    if not kept:
        what = f"is missing, or {journal.name}, though the job has read the stream {stream!r}"
        raise damage(files, what)
    path, end = max(kept.items(), key=lambda item: item[1])
    if end < position:
        unit = "bytes" if path is journal else "files"
        raise damage(path, f"has {end} of the {position} {unit} that the job has read")


def _lines(path: Path) -> int:
    """How many whole lines a file has."""
    try:
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
    except OSError as e:
        raise damage(path, f"cannot be read ({e.strerror})") from e
