"""View folder: a folder for temporary files of one process, locked as long as that lives, and removed after it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["view_folder"]

_PREFIX: Final = "penstock-store-"
_LOCK: Final = "in-use.lock"


@contextlib.contextmanager
def view_folder() -> Iterator[Path]:
    """Create a folder that only its owner can enter. Those of processes that were killed are removed."""
    _remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    hidden = folder / f".{_LOCK}"
    try:
        with hidden.open("w") as lock:
            # Under its name the file is always locked, or left behind.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                with (folder / _LOCK).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
