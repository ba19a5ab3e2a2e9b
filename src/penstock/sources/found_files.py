"""Found files: the durable list of the files that a file source has found, in order, which does not grow forever.

The list ends with files in full, one per line: those still to be read, or that may have to be read again. For the files
before them, the first line has their number and a hash (16 bytes, of folder and name) of each whose name is still in
its folder, so that none is taken twice. A name that has been gone from the folder for a day is dropped.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
import xxhash

from penstock.base.durable import write_atomically
from penstock.errors import CheckpointError

__all__ = ["FoundFiles", "Listing", "LoggedFile", "files_found", "no_fence"]

_FORMAT: Final = 1
_BEGINNING: Final = b'{"before":'
_HASH: Final = "S16"
_HERE: Final = 0
_TELLING_BYTES: Final = 40
_CHUNK_BYTES: Final = 1 << 20
# The list is rewritten when at least this many of its files no longer need to be there in full, and no fewer than it
# keeps: all files in full, and a fourth of the names. So each is rewritten about once, however many come at a time.
_WORTHWHILE: Final = 1000


@dataclass(frozen=True)
class LoggedFile:
    """A file as it was when it was found."""

    directory: str
    name: str
    size: int
    mtime_ns: int

    @property
    def path(self) -> str:
        """The path of the file."""
        return os.path.join(self.directory, self.name)  # noqa: PTH118  # called for each file of a batch

    @property
    def partition(self) -> str:
        """The name as text that Arrow can hold, whatever its bytes are."""
        return os.fsencode(self.name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Listing:
    """The names in a folder at a time, in seconds since 1970."""

    directory: str
    names: Sequence[str]
    at_s: float


class _Names(msgspec.Struct, array_like=True):
    """The files of one folder that are no longer in the list in full: their sorted hashes, and since when each is gone.

    Both as base64: hashes of 16 bytes, and seconds since 1970 as int64, 0 for a file that is in the folder.
    """

    hashes: str
    away: str


class _Before(msgspec.Struct):
    """The first line of a list: how many files were found before those in it, and what is known of them."""

    before: int
    format: int
    names: dict[str, _Names]


def no_fence() -> None:
    """Raise nothing: no later run can begin."""


class FoundFiles:
    """The durable list of the files that were found. One process appends; others may read it at the same time.

    A process that appends replaces the file by a copy first, and adds to that: what an earlier run that was not kept
    out still adds goes into the file that was replaced. `fence` raises an error when a later run has begun. It is asked
    after each addition, so no position covers a file that the copy of a later run may not have.
    """

    def __init__(self, path: str, fence: Callable[[], None] = no_fence) -> None:
        self._path = Path(path)
        self._fence = fence
        self._list: BinaryIO | None = None
        self._inode = 0
        self._forget_all()
        self.refresh()

    def _forget_all(self) -> None:
        self._beginning = b""
        self._read_bytes = 0
        self._recent: set[tuple[str, str]] = set()
        self._hashes: dict[str, np.ndarray] = {}
        self._away: dict[str, np.ndarray] = {}
        self.first = 0
        self.files: list[LoggedFile] = []

    @property
    def end(self) -> int:
        """How many files were found."""
        return self.first + len(self.files)

    def between(self, start: int, end: int) -> list[LoggedFile]:
        """Return the files between two positions. Raises CheckpointError when the list no longer has them."""
        if start < self.first and start < end:
            raise CheckpointError(
                f"The list of files {self._path} begins after the first {self.first} files, but the checkpoint is to "
                f"continue after {start}. Restore both from the same copy of the checkpoint."
            )
        return self.files[max(0, start - self.first) : max(0, end - self.first)]

    def unknown(self, directory: str, names: Iterable[str]) -> list[str]:
        """Return the names in a folder that were not found before."""
        new = [name for name in names if (directory, name) not in self._recent]
        hashes = self._hashes.get(directory)
        if hashes is None or not new:
            return new
        taken = _contains(hashes, _hashes_of(directory, new))
        return [name for name, is_taken in zip(new, taken.tolist(), strict=True) if not is_taken]

    def append(self, files: Sequence[LoggedFile]) -> None:
        """Add files; they are on disk when this returns."""
        lines = b"".join(_log_line(file) for file in files)
        log = self.take_over()
        try:
            # A crash has left what follows the last whole line, and no position covers it.
            log.truncate(self._read_bytes)
            log.seek(self._read_bytes)
            log.write(lines)
            log.flush()
            os.fsync(log.fileno())
        except OSError as e:
            raise self._error(e) from e
        self._fence()
        if self._read_bytes == 0:
            self._beginning = lines[:_TELLING_BYTES]
        self._remember(files, len(lines))

    def take_over(self) -> BinaryIO:
        """Replace the list by a copy that only this process adds to, unless it has done so before; return the copy.

        This comes before files are compared with the list, since an earlier run may have added some.
        """
        if self._list is not None:
            return self._list
        self._fence()
        self.refresh()
        try:
            content = self._path.read_bytes()[: self._read_bytes] if self._read_bytes else b""
        except OSError as e:
            raise self._error(e) from e
        return self._replace(content)

    def _replace(self, content: bytes) -> BinaryIO:
        try:
            write_atomically(self._path, content)
            log = self._path.open("r+b")
        except OSError as e:
            raise self._error(e) from e
        if self._list is not None:
            self._list.close()
        self._list, self._inode = log, os.fstat(log.fileno()).st_ino
        return log

    def compact(self, upto: int, there: Listing, forgotten_after_s: float) -> None:
        """Rewrite the list, without the full entries of the files before a position.

        Names that have been gone from the listed folder for `forgotten_after_s` are forgotten.
        """
        upto = min(max(upto, self.first), self.end)
        gone = self.files[: upto - self.first]
        hashes, away = dict(self._hashes), dict(self._away)
        for place in {file.directory for file in gone}:
            new = _hashes_of(place, [file.name for file in gone if file.directory == place])
            known, first = np.unique(np.concatenate([hashes.get(place, new[:0]), new]), return_index=True)
            since = np.concatenate(
                [away.get(place, np.zeros(0, np.int64)), np.full(len(new), _HERE, np.int64)]
            )
            hashes[place], away[place] = known, since[first]
        place = there.directory
        if place in hashes:
            here = _contains(np.sort(_hashes_of(place, there.names)), hashes[place])
            since = np.where(here, _HERE, np.where(away[place] == _HERE, int(there.at_s), away[place]))
            kept = here | (since > there.at_s - forgotten_after_s)
            hashes[place], away[place] = hashes[place][kept], since[kept]
        left = self.files[upto - self.first :]
        lines = [_before_line(upto, hashes, away), *map(_log_line, left)]
        self._fence()
        self._replace(b"".join(lines))
        self._forget_all()
        self.refresh()

    def is_worthwhile(self, upto: int) -> bool:
        """Return whether the list has enough files before a position to be compacted."""
        known = sum(map(len, self._hashes.values()))
        return upto - self.first >= max(_WORTHWHILE, self.end - upto, known // 4)

    def refresh(self) -> None:
        """Read the lines added since; all of the list if it was rewritten."""
        try:
            with self._path.open("rb") as log:
                # Of two compacted lists the second begins after more files; a list that was taken over is another file.
                inode = os.fstat(log.fileno()).st_ino
                if inode != self._inode or not log.read(_TELLING_BYTES).startswith(self._beginning):
                    self._forget_all()
                    self._inode = inode
                log.seek(self._read_bytes)
                added = log.read()
        except FileNotFoundError:
            return
        except OSError as e:
            raise self._error(e) from e
        whole = added.rfind(b"\n") + 1
        lines = added[:whole].splitlines()
        try:
            if self._read_bytes == 0 and lines and lines[0].startswith(_BEGINNING):
                self._begin(_decode(lines.pop(0)))
            files = [LoggedFile(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as e:
            raise CheckpointError(
                f"The list of files {self._path} is damaged ({e}). Restore it, or delete the checkpoint."
            ) from e
        if self._read_bytes == 0:
            self._beginning = added[: min(whole, _TELLING_BYTES)]
        self._remember(files, whole)

    def _begin(self, before: _Before) -> None:
        if before.format != _FORMAT:
            raise CheckpointError(
                f"The list of files {self._path} has the format {before.format}; this penstock reads {_FORMAT}. Run "
                "the job with the penstock that wrote it."
            )
        self.first = before.before
        for directory, names in before.names.items():
            self._hashes[directory] = np.frombuffer(base64.b64decode(names.hashes), _HASH)
            self._away[directory] = np.frombuffer(base64.b64decode(names.away), "<i8")

    def _remember(self, files: Sequence[LoggedFile], size: int) -> None:
        self._read_bytes += size
        self.files.extend(files)
        self._recent.update((file.directory, file.name) for file in files)

    def _error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint cannot keep its list of files {self._path}: {error.strerror}. "
            "Choose a folder that can be written with --checkpoint."
        )


def files_found(path: Path) -> int:
    """Return how many files were found, by the whole lines of their list. Raises OSError and ValueError."""
    with path.open("rb") as log:
        first = log.readline()
        before = 0
        if first.startswith(_BEGINNING):
            before = _decode(first).before
        else:
            log.seek(0)
        return before + sum(chunk.count(b"\n") for chunk in iter(lambda: log.read(_CHUNK_BYTES), b""))


def _decode(line: bytes) -> _Before:
    # Names of folders may contain bytes that are not valid text, which msgspec does not read.
    return msgspec.convert(json.loads(line), _Before)


def _before_line(upto: int, hashes: dict[str, np.ndarray], away: dict[str, np.ndarray]) -> bytes:
    names = {
        directory: _Names(_as_text(found), _as_text(away[directory].astype("<i8")))
        for directory, found in sorted(hashes.items())
        if len(found)
    }
    # json escapes bytes that are not valid text in names of folders, and never writes a newline.
    fields = {"before": upto, "format": _FORMAT, "names": msgspec.to_builtins(names)}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _as_text(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _log_line(file: LoggedFile) -> bytes:
    # json escapes bytes that are not valid text in file names, and never writes a newline.
    fields = {"directory": file.directory, "name": file.name, "size": file.size, "mtime_ns": file.mtime_ns}
    return json.dumps(fields).encode() + b"\n"


def _hashes_of(directory: str, names: Sequence[str]) -> np.ndarray:
    beginning = os.fsencode(directory) + b"/"
    hashes = b"".join(xxhash.xxh3_128_digest(beginning + os.fsencode(name)) for name in names)
    return np.frombuffer(hashes, _HASH)


def _contains(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return a mask of the wanted hashes that are known; `known` is sorted."""
    if not len(known):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.asarray(known[places] == wanted)
