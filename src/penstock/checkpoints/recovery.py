"""Recovery: when a job starts again, remove files that a power loss has torn and on which no output depends.

The mark in `begun.json` names the newest micro-batch whose outputs may exist, and all that a replay of it needs was on
disk before the mark was (`checkpoint_sync.py`). What Spark wrote later may be missing, empty or torn: the commit of
that micro-batch, the state that it wrote, and the plan of the next one. So a checkpoint can always go back to the
moment before that commit; the micro-batch is then repeated, and outputs that have it take nothing twice.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.base.durable import sync_folder
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.checkpoint_files import (
    check_before_commit,
    check_checkpoint,
    newest_begun,
)
from penstock.errors import CheckpointError, CheckpointMovedError
from penstock.runtime.cuts import batch_numbers, newest_batch

__all__ = ["TornEnd", "find_torn_end", "recover", "remove_state_of_nothing"]

_VERSION: Final = re.compile(r"\.?(\d+)_")
# Hadoop's checksum files: a magic word, the number of bytes that each sum covers, and four bytes for each sum.
_SUMS_HEADER: Final = b"crc\0" + (512).to_bytes(4, "big")


@dataclass(frozen=True)
class TornEnd:
    """The incomplete files of a checkpoint after the newest micro-batch that was begun.

    `batch` is that micro-batch by penstock's number, None when none was begun; `paths` are the files to remove.
    """

    batch: int | None
    reason: str
    paths: tuple[Path, ...]

    @property
    def message(self) -> str:
        """What happened and what follows, for the user."""
        again = (
            "no micro-batch was begun, and the job plans the first one again"
            if self.batch is None
            else f"micro-batch {self.batch} is repeated, and exactly-once outputs have nothing twice"
        )
        return (
            f"The end of the checkpoint was torn, as after a power loss: {self.reason} No output depends on it; "
            f"{again}."
        )


def recover(checkpoint: Checkpoint, retained: int) -> str:
    """Check a checkpoint, which must be locked, and remove a torn end that no output depends on.

    Returns a sentence that says so, or an empty string. Raises CheckpointError, which names the file, for any other
    damage.
    """
    lineage = checkpoint.stored_lineage()
    if lineage is None:
        return ""
    found = find_torn_end(checkpoint, lineage, retained)
    if found is not None:
        _remove(found.paths)
        check_checkpoint(checkpoint, retained)
    remove_state_of_nothing(checkpoint.spark_folder)
    _remove_torn_checksums(checkpoint.spark_folder)
    return "" if found is None else f"{found.message} "


def find_torn_end(checkpoint: Checkpoint, lineage: Lineage, retained: int) -> TornEnd | None:
    """Return what must be removed from a checkpoint to make it whole; None if it is whole.

    Raises CheckpointError, which names the file, when the checkpoint has other damage.
    """
    try:
        check_checkpoint(checkpoint, retained)
    except CheckpointMovedError:
        # The checkpoint is whole, and can be read again at its old place.
        raise
    except CheckpointError as e:
        found = _find_torn_end(checkpoint, lineage, retained, e)
        if found is None:
            raise
        return found
    return None


def _find_torn_end(
    checkpoint: Checkpoint, lineage: Lineage, retained: int, error: CheckpointError
) -> TornEnd | None:
    folder = checkpoint.spark_folder
    offsets, commits = (batch_numbers(folder / name) for name in ("offsets", "commits"))
    begun = max(newest_begun(checkpoint) - lineage.first_batch, -1)
    # With outputs up to the mark, at most the next micro-batch can be planned, and at most this one committed.
    if max(offsets, default=-1) not in (begun, begun + 1) or max(commits, default=-1) > begun:
        return None
    if begun >= 0:
        try:
            check_before_commit(checkpoint, lineage, retained, begun)
        except CheckpointError:
            return None
    paths = tuple(_list_later(folder, begun))
    # Without the remedy, since recovery follows it instead of the user.
    reason = str(error).removeprefix("The checkpoint is damaged: ").split(". ")[0] + "."
    return TornEnd(lineage.first_batch + begun if begun >= 0 else None, reason, paths)


def _list_later(folder: Path, begun: int) -> Iterator[Path]:
    """Yield what Spark wrote after the plan of the micro-batch that was begun last; -1 if none was."""
    for log, first in (("offsets", begun + 1), ("commits", begun)):
        for path in _files(folder / log):
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdecimal() and int(number) >= first:
                yield path
    if begun <= 0:
        # The first micro-batch reads no state.
        yield folder / "state"
    else:
        yield from (
            path
            for path in (folder / "state").glob("*/*/*")
            if (version := _VERSION.match(path.name)) is not None
            and path.parent.name.isdecimal()
            and int(version.group(1)) > begun
        )
    if begun < 0:
        yield from (folder / name for name in ("metadata", ".metadata.crc"))


def remove_state_of_nothing(folder: Path) -> None:
    """Remove the state of a first micro-batch that was not committed, since a replay stores it again.

    Spark keeps an existing description of the state, even an empty one, and without a plan it takes any state for
    damage.
    """
    if not batch_numbers(folder / "commits") and (folder / "state").is_dir():
        _remove([folder / "state"])


def _remove_torn_checksums(folder: Path) -> None:
    """Remove torn checksums of the newest files; Spark continues without them."""
    committed = newest_batch(folder / "commits")
    planned = newest_batch(folder / "offsets")
    newest = [folder / "commits" / str(committed), folder / "offsets" / str(planned)]
    newest += (folder / "sources").glob("[0-9]*/0")
    newest += (folder / "state").glob(f"*/*/{committed + 1}_*")
    for path in newest:
        sums = path.with_name(f".{path.name}.crc")
        if path.exists() and sums.exists() and not _sums_fit(sums, path.stat().st_size):
            sums.unlink()


def _sums_fit(sums: Path, size: int) -> bool:
    """Return whether a checksum file has the right length for a file of this size."""
    data = sums.read_bytes()
    return data.startswith(_SUMS_HEADER) and len(data) == len(_SUMS_HEADER) + 4 * -(-size // 512)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)
