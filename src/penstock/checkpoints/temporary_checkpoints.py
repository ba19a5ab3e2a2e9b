"""Temporary checkpoints: for runs that name no checkpoint; removed at the end, unless they explain a failure."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint

__all__ = ["keep_on_failure", "temporary_checkpoint"]

_DEAD_LETTERS: Final = "dead-letters"
_LOGS: Final = ("spark.log", "output.log")


@contextmanager
def temporary_checkpoint(on_note: Callable[[str], None]) -> Iterator[Checkpoint]:
    """Create a checkpoint for one run, and remove it at the end.

    After a failure it stays if it has logs or dead letters, and `on_note` gets a sentence that says where. After a
    success it stays only if it has dead letters, whose place is in the summary of the run.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    with keep_on_failure(folder, folder, on_note):
        yield Checkpoint.open(str(folder))
    if not _holds_something(folder / _DEAD_LETTERS):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def keep_on_failure(folder: Path, checkpoint: Path, on_note: Callable[[str], None]) -> Iterator[None]:
    """Remove a temporary folder when the body fails, unless its checkpoint has more about the failure.

    Then `on_note` gets a sentence that says where it is. After an interrupt the folder goes, since the user knows why
    the run ended.
    """
    try:
        yield
    except Exception:
        left = [name for name in (*_LOGS, _DEAD_LETTERS) if _holds_something(checkpoint / name)]
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        whole = "the folder" if folder == checkpoint else str(folder)
        on_note(
            f"More about the failure of the run ({', '.join(left)}) is in {checkpoint}. Delete {whole} when you have "
            "seen it."
        )
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _holds_something(path: Path) -> bool:
    """Return whether a file has content, or a folder has a file that is not hidden."""
    if path.is_dir():
        return any(one.is_file() and not one.name.startswith(".") for one in path.rglob("*"))
    return path.exists() and path.stat().st_size > 0
