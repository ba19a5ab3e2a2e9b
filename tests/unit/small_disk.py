"""A small file system of its own, which a test can fill: a tmpfs, which only root can mount."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]

_BLOCK = 4096


@dataclass
class SmallDisk:
    """The disk at a folder."""

    folder: Path

    @property
    def left(self) -> int:
        """How many bytes can still be written."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, left: int) -> None:
        """Take all room but so many bytes, whatever others write meanwhile."""
        with (self.folder / "ballast").open("ab", buffering=0) as file:
            while (excess := self.left - left) >= _BLOCK:
                try:
                    file.write(bytes(excess // _BLOCK * _BLOCK))
                except OSError as e:
                    # Somebody else took the room between the look and the write.
                    if e.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount one for the time being; the test is skipped where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "penstock-small", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as e:
        told = getattr(e, "stderr", None) or e
        pytest.skip(f"No small disk can be mounted here, which takes root with CAP_SYS_ADMIN: {told}")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily, since a process that is just ending may have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=True)
