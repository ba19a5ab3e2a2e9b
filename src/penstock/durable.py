"""Durable files: what is on disk when a call returns, also after a power cut. Local folders only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["sync_folder", "whole_lines_bytes", "write_atomically"]

_CHUNK_BYTES: Final = 64 << 10


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it has either its old or its new content, also after a crash.

    With `durable` the new content is on disk before it takes the old one's place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        # On a full disk, what is left of it would take room that others need.
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk, which their own content on disk does not imply."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines_bytes(file: int, before: int | None = None) -> int:
    """How many bytes of an open file are whole lines; with `before`, of so many bytes at its beginning.

    What a crash has left of a line is behind them.
    """
    end = os.fstat(file).st_size if before is None else before
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
