"""Working folder: the files of a checkpoint on this machine while its home is an object store.

It is filled from the store when a run starts, and looked through for changes whenever the store must have them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.base.durable import make_folder
from penstock.checkpoints.ownership import LOCK_FILE
from penstock.checkpoints.stored_entries import Piece, StoredFile, digest_of
from penstock.checkpoints.stored_home import HOME_FILE
from penstock.errors import CheckpointError

__all__ = ["Change", "Changes", "WorkingFolder"]

# Needed by this run on this machine only: its lock, the code that it ships, its logs, and the note of its home.
_OWN: Final = (LOCK_FILE, HOME_FILE, "code")
_OWN_LOGS: Final = ("spark.log", "output.log")
_TEMPORARY: Final = ".tmp"
# A file may change again without a new time while the clock of its file system has not moved on.
_UNSETTLED_NS: Final = 50_000_000
_MAX_PIECES: Final = 16
_AT_ONCE: Final = 8


@dataclass(frozen=True)
class _Seen:
    """A file at the last look: its data from the file system, and the digest and place of its content."""

    inode: int
    size: int
    mtime_ns: int
    digest: int
    settled: bool
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Change:
    """A file that has changed: its new content, which follows that of `before`."""

    mtime_ns: int
    content: bytes
    before: tuple[Piece, ...] = ()


@dataclass
class Changes:
    """The changes since the last look: files by their paths in the folder, and paths that are gone."""

    files: dict[str, Change] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.files or self.gone)


class WorkingFolder:
    """A folder whose files are compared with those that the store has."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder
        self._seen: Final[dict[str, _Seen]] = {}

    def look(self) -> Changes:
        """Return the changes since the last look, or since `fill`.

        The files of a folder are listed before its folders: a listed file was written whole, and the files in folders
        below to which it refers, such as the tables of a snapshot of state, existed before.
        """
        found = Changes()
        there = self._look_below("", found)
        for path in [path for path in self._seen if path not in there]:
            del self._seen[path]
            found.gone.append(path)
        return found

    def look_in(self, folder: str) -> Changes:
        """Return the files below one folder that are new or changed since the last look; none is reported as gone."""
        found = Changes()
        self._look_below(f"{folder}/", found)
        return found

    def _look_below(self, folder: str, found: Changes) -> set[str]:
        """Add the changes below a folder; return the paths of all its entries."""
        there: set[str] = set()
        now_ns = time.time_ns()
        for path, entry in self._entries(folder):
            there.add(path)
            if entry is None:
                if path not in self._seen:
                    self._seen[path] = _Seen(0, 0, 0, 0, settled=True)
                    found.files[path] = Change(0, b"")
                continue
            change = self._changed(path, entry, now_ns)
            if change is not None:
                found.files[path] = change
        return there

    def stored(self, path: str, pieces: tuple[Piece, ...]) -> None:
        """Note the place of a file's content from `look`, so that the next look may return only what was appended."""
        seen = self._seen[path]
        self._seen[path] = _Seen(seen.inode, seen.size, seen.mtime_ns, seen.digest, seen.settled, pieces)

    def _changed(self, path: str, entry: os.DirEntry[str], now_ns: int) -> Change | None:
        seen = self._seen.get(path)
        try:
            status = entry.stat(follow_symlinks=False)
            if (
                seen is not None
                and seen.settled
                and (seen.inode, seen.size, seen.mtime_ns)
                == (status.st_ino, status.st_size, status.st_mtime_ns)
            ):
                return None
            content = Path(entry.path).read_bytes()
        except FileNotFoundError:
            # Gone since it was listed; the next look says so.
            return None
        digest = digest_of(content)
        settled = now_ns - status.st_mtime_ns > _UNSETTLED_NS
        pieces = () if seen is None else seen.pieces
        self._seen[path] = _Seen(status.st_ino, len(content), status.st_mtime_ns, digest, settled, pieces)
        if seen is None:
            return Change(status.st_mtime_ns, content)
        if (seen.size, seen.digest) == (len(content), digest) and seen.mtime_ns == status.st_mtime_ns:
            return None
        grown = 0 < seen.size < len(content) and len(pieces) < _MAX_PIECES and pieces
        if grown and digest_of(memoryview(content)[: seen.size]) == seen.digest:
            return Change(status.st_mtime_ns, content[seen.size :], pieces)
        return Change(status.st_mtime_ns, content)

    def _entries(self, below: str) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
        """Yield the files with their paths, and the paths of empty folders, which end with a slash."""
        waiting = [below]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(self.path / folder) as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except FileNotFoundError:
                continue
            folders = []
            is_empty = True
            for entry in entries:
                if entry.name.endswith(_TEMPORARY) or (not folder and _is_own(entry.name)):
                    continue
                is_empty = False
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{folder}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield f"{folder}{entry.name}", entry
            if is_empty and folder:
                yield folder, None
            waiting += reversed(folders)

    def fill(self, table: Mapping[str, StoredFile], fetch: Callable[[str], memoryview]) -> None:
        """Fill the folder with the files of a table, and nothing else; `fetch` returns an object's content."""
        self._clear()
        by_object: dict[str, list[tuple[Path, int, Piece]]] = {}
        for path, file in table.items():
            target = self.path / path
            if path.endswith("/"):
                make_folder(target)
                continue
            make_folder(target.parent)
            with target.open("xb") as made:
                made.truncate(file.size)
            start = 0
            for piece in file.pieces:
                by_object.setdefault(piece.object, []).append((target, start, piece))
                start += piece.length
        with ThreadPoolExecutor(_AT_ONCE, "checkpoint-fill") as pool:
            for done in [pool.submit(_write, fetch, name, parts) for name, parts in by_object.items()]:
                done.result()
        for path, file in table.items():
            if not path.endswith("/"):
                os.utime(self.path / path, ns=(file.mtime_ns, file.mtime_ns))
        self._seen.clear()
        self.look()
        for path, file in table.items():
            self.stored(path, file.pieces)

    def _clear(self) -> None:
        for entry in list(os.scandir(self.path)):
            if entry.name == LOCK_FILE or entry.name.startswith(_OWN_LOGS):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith((*_OWN_LOGS, ".probe-"))


def _write(fetch: Callable[[str], memoryview], name: str, parts: list[tuple[Path, int, Piece]]) -> None:
    content = fetch(name)
    for target, start, piece in parts:
        data = content[piece.offset : piece.offset + piece.length]
        if len(data) != piece.length or digest_of(data) != piece.digest:
            raise CheckpointError(
                f"The checkpoint is damaged: the object {name} has changed bytes, of the file {target.name}. Restore "
                "the object from a copy, or start from a savepoint with another checkpoint."
            )
        with target.open("r+b") as file:
            file.seek(start)
            file.write(data)
