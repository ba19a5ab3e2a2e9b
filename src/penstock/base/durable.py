"""Durable files: write so that content is on disk when a call returns, even after a power cut. Local folders only."""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from pathlib import Path
from typing import Final

__all__ = [
    "NO_HARD_LINKS",
    "make_folder",
    "sync_file",
    "sync_file_system",
    "sync_folder",
    "whole_lines_bytes",
    "write_atomically",
    "write_once",
]

NO_HARD_LINKS: Final = (
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EMLINK,
    errno.ENOSYS,
    errno.EXDEV,
)
"""The errors of file systems that refuse hard links."""

_CHUNK_BYTES: Final = 64 << 10


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it has either its old or its new content, even after a crash.

    With `durable`, the new content and its name are on disk when this returns. Without it, a power cut may leave the
    old file, the new one, or an empty one.
    """
    make_folder(path.parent)
    # Threads, and processes on other machines with the same number, may write the same file at once.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Write a file durably, unless it is there already: whichever writer is first, its content stays.

    Return whether this one was first.
    """
    make_folder(path.parent)
    new = path.with_name(f".{path.stem}-{uuid.uuid4().hex}")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)
            is_first = True
        except FileExistsError:
            is_first = False
        sync_folder(path.parent)
    finally:
        new.unlink(missing_ok=True)
    return is_first


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each durable in its own parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def sync_file(path: Path) -> None:
    """Sync the content of a file to disk, even if another process has written it."""
    _sync(path)


def sync_folder(folder: Path) -> None:
    """Sync the names of a folder's files to disk, which syncing their content does not do."""
    _sync(folder)


def sync_file_system(folder: Path) -> None:
    """Sync everything that any process has written to the file system of a folder."""
    system = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if system is None:
        # Only Linux can sync a single file system.
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if system(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines_bytes(file: int, before: int | None = None) -> int:
    """Return the number of bytes in whole lines at the start of an open file, or of its first `before` bytes.

    A partial line that a crash has left comes after them.
    """
    end = os.fstat(file).st_size if before is None else before
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
