"""Temporary checkpoints: of runs that are given none, removed at their end unless they tell why it failed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint

__all__ = ["kept_to_understand", "temporary_checkpoint"]

_DEAD_LETTERS: Final = "dead-letters"
_LOGS: Final = ("spark.log", "output.log")


@contextmanager
def temporary_checkpoint(tell: Callable[[str], None]) -> Iterator[Checkpoint]:
    """A checkpoint for one run, which goes with it.

    After a failure it stays if it has logs or dead letters, and `tell` is told where; after a good end only if it has
    dead letters, whose place the summary of the run tells.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    with kept_to_understand(folder, folder, tell):
        yield Checkpoint.open(str(folder))
    if not _holds_something(folder / _DEAD_LETTERS):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kept_to_understand(folder: Path, checkpoint: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Remove a temporary folder when what is done with it fails, unless its checkpoint tells more of the failure.

    Then `tell` is told where that is. Who interrupts a run knows why it ended.
    """
    try:
        yield
    except Exception:
        left = [name for name in (*_LOGS, _DEAD_LETTERS) if _holds_something(checkpoint / name)]
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        whole = "the folder" if folder == checkpoint else str(folder)
        tell(
            f"What the run leaves to understand its failure ({', '.join(left)}) is in {checkpoint}. Delete {whole} "
            "when you have seen it."
        )
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _holds_something(path: Path) -> bool:
    """Whether a file has content, or a folder a file that people see."""
    if path.is_dir():
        return any(one.is_file() and not one.name.startswith(".") for one in path.rglob("*"))
    return path.exists() and path.stat().st_size > 0
