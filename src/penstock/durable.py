"""Durable files: what is on disk when a call returns, also after a power cut. Local folders only."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_atomically"]


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it has either its old or its new content, also after a crash.

    With `durable` the new content is on disk before it takes the old one's place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk, which their own content on disk does not imply."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
