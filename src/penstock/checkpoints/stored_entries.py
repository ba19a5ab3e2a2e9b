"""Stored entries: the numbered objects that are, one after the other, the history of a checkpoint on an object store.

```
PREFIX/log/0000000012          an entry: one line of JSON, then the content of small files
PREFIX/files/0000000003-ID     content too large for an entry, named after the epoch of the run that wrote it
```

An entry says which files of the checkpoint have changed since the one before, and where their content is. Every
64th has the table of all files, so that a reader needs that one and those after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec
import xxhash

from penstock.errors import CheckpointError

__all__ = [
    "FILES",
    "LOG",
    "TABLE_EVERY",
    "Entry",
    "FileTable",
    "Piece",
    "StoredFile",
    "base_of",
    "decode_entry",
    "digest_of",
    "encode_entry",
    "entry_name",
    "epoch_of",
    "number_of",
]

LOG: Final = "log"
FILES: Final = "files"
TABLE_EVERY: Final = 64
"""An entry whose number this divides has the table of all files."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file's content: bytes of an object, and their digest. In an entry they count from its second line."""

    object: str
    offset: int
    length: int
    digest: int


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a checkpoint: when it was changed last, and its content, in pieces. A folder has a name with `/`."""

    mtime_ns: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(piece.length for piece in self.pieces)


class Entry(msgspec.Struct, frozen=True):
    """An addition of a run to the log.

    `id` is the entry's own, `run` and `epoch` those of the run, `host` its machine, `folder` its working folder. With
    `takes` the run takes over the checkpoint. `files` have changed, and `gone` are no longer there. `table` has all
    files, and `taken` the numbers of the entries with `takes`.
    """

    number: int
    id: str
    run: str
    epoch: int
    host: str
    folder: str
    takes: bool = False
    files: dict[str, StoredFile] = {}
    gone: tuple[str, ...] = ()
    table: dict[str, StoredFile] | None = None
    taken: tuple[int, ...] = ()


def entry_name(number: int) -> str:
    """Return the name of an entry.

    >>> entry_name(12)
    'log/0000000012'
    """
    return f"{LOG}/{number:010}"


def number_of(name: str) -> int | None:
    """Return the number of an entry from the last part of its name, None if it is none.

    >>> number_of("0000000012"), number_of("about.json")
    (12, None)
    """
    return int(name) if len(name) == 10 and name.isdecimal() else None


def epoch_of(name: str) -> int | None:
    """Return the epoch of the run that has written an object of content, from the last part of its name."""
    return number_of(name.partition("-")[0])


def base_of(number: int) -> int:
    """Return the newest entry with a table, up to a number.

    >>> base_of(63), base_of(64), base_of(130)
    (0, 64, 128)
    """
    return number - number % TABLE_EVERY


def encode_entry(entry: Entry, content: bytes) -> bytes:
    """Return an entry as an object."""
    return msgspec.json.encode(entry) + b"\n" + content


def decode_entry(data: bytes, shown: str) -> tuple[Entry, memoryview]:
    """Return an entry, and the content in it. Raises CheckpointError, which shows its name, when it is damaged."""
    head, _, _ = data.partition(b"\n")
    try:
        return msgspec.json.decode(head, type=Entry), memoryview(data)[len(head) + 1 :]
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CheckpointError(
            f"The checkpoint is damaged: {shown} is not an entry of penstock's ({e}). Restore the object from a copy, "
            "or start from a savepoint with another checkpoint."
        ) from e


def digest_of(content: bytes | memoryview) -> int:
    """Return the digest of a piece."""
    return xxhash.xxh3_64_intdigest(content)


class FileTable:
    """All files of a checkpoint after an entry, and how many of their pieces each object has."""

    def __init__(self) -> None:
        self.files: dict[str, StoredFile] = {}
        self._pieces: Counter[str] = Counter()

    def begin(self, files: Mapping[str, StoredFile]) -> None:
        """Begin with the table of an entry."""
        self.files = {}
        self._pieces.clear()
        self.apply(files, ())

    def apply(self, files: Mapping[str, StoredFile], gone: Iterable[str]) -> set[str]:
        """Take in the changes of an entry; return the objects that are no longer needed."""
        touched: set[str] = set()
        for path in gone:
            touched |= self._drop(path)
        for path, file in files.items():
            touched |= self._drop(path)
            self.files[_check(path)] = file
            self._pieces.update(piece.object for piece in file.pieces)
        return {name for name in touched if name not in self._pieces}

    def _drop(self, path: str) -> set[str]:
        before = self.files.pop(path, None)
        found = set()
        for piece in () if before is None else before.pieces:
            found.add(piece.object)
            self._pieces[piece.object] -= 1
            if not self._pieces[piece.object]:
                del self._pieces[piece.object]
        return found

    def needs(self, name: str) -> bool:
        """Return whether a file has a piece in an object."""
        return name in self._pieces


def _check(path: str) -> str:
    if path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise CheckpointError(f"The checkpoint has a file {path!r}, which would be outside its folder.")
    return path
