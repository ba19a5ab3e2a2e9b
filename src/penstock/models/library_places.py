"""Library places: where driver and tasks keep parts of the library of models: in a folder, on a store, or in both.

Content under a name never changes, unless it was written by `put`. A run that keeps its checkpoint in a store may lose
its disk after outputs of a micro-batch have become visible, so its tasks write into the store themselves: answers, and
on the run's shelf everything that the driver and the other tasks must know.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.base.durable import write_atomically, write_once
from penstock.errors import CheckpointError
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.objects.object_stores import Place

__all__ = [
    "ANSWERS",
    "ASKED",
    "FAILURES",
    "FolderPlace",
    "LibraryPlace",
    "PublishedPlace",
    "ReadPlace",
    "ShelfPlace",
    "StorePlace",
    "take_in",
]


ANSWERS: Final = "answers"
"""The folder of answers in the library of models, and in a store."""

ASKED: Final = "asked"
"""The folder of versions that the driver is to fetch and examine."""

FAILURES: Final = "failures"
"""The folder of the reasons why versions could not be fetched."""

REMOVED: Final = "removed"
"""The folder on a shelf of the names of what the driver has removed."""


class ReadPlace(Protocol):
    """A place to read from. Its methods raise OSError, or ExternalSystemError where it is on a store."""

    def __hash__(self) -> int:
        """Return the hash, since contents are kept by place and name."""

    @property
    def shown(self) -> str:
        """The place, for messages."""

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""

    def opened(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context with a file of the content under a name. Raises FileNotFoundError."""


class LibraryPlace(ReadPlace, Protocol):
    """A place to read from and to write to."""

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content durably unless the name has some already; return the content under the name."""

    def put(self, name: str, content: bytes) -> None:
        """Keep content durably, in place of any other."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove contents, if they are there."""


@dataclass(frozen=True)
class FolderPlace:
    """A folder within reach of all its users."""

    folder: str

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return self.folder

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""
        try:
            return Path(self.folder, name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""
        # Files that are being written have hidden names.
        found = Path(self.folder, below).rglob("[!.]*")
        return sorted(path.relative_to(self.folder).as_posix() for path in found if path.is_file())

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""
        try:
            return sorted(path.name for path in Path(self.folder).iterdir() if path.is_file())
        except FileNotFoundError:
            return []

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""
        path = Path(self.folder, name)
        found = path.stat()
        return str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Return a context with the file that is kept under a name."""
        yield Path(self.folder, name)

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content durably unless the name has some already; return the content under the name."""
        path = Path(self.folder, name)
        return content if write_once(path, content) else path.read_bytes()

    def put(self, name: str, content: bytes) -> None:
        """Keep content durably, in place of any other."""
        write_atomically(Path(self.folder, name), content)

    def remove(self, names: Sequence[str]) -> None:
        """Remove contents, if they are there."""
        for name in names:
            Path(self.folder, name).unlink(missing_ok=True)

    def take_in(self) -> None:
        """Do nothing: tasks write to the folder itself."""


@dataclass(frozen=True)
class StorePlace:
    """Objects below a place of a store. `settings` are as in ObjectFolder. Methods raise ExternalSystemError."""

    place: Place
    settings: tuple[tuple[str, str], ...]

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return self.place.shown

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""
        return self._objects.find(name)

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""
        if not below:
            return sorted(found.name for found in self._objects.objects())
        return sorted(f"{below}/{name}" for name in self._objects.names(below))

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""
        return [name for name in self.names("") if "/" not in name]

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""
        if not self._objects.holds(name):
            raise FileNotFoundError(f"{self.shown}/{name}")
        return self.shown, name

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Return a context with a copy of the content under a name. Raises FileNotFoundError."""
        with tempfile.NamedTemporaryFile(prefix="penstock-") as file:
            self._objects.copy(name, file)
            file.flush()
            yield Path(file.name)

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content unless the name has some already; return the content under the name."""
        return content if self._objects.create(name, content) else self._objects.read(name)

    def put(self, name: str, content: bytes) -> None:
        """Keep content, in place of any other."""
        self._objects.put(name, io.BytesIO(content))

    def remove(self, names: Sequence[str]) -> None:
        """Remove contents, if they are there."""
        self._objects.remove(names)

    @property
    def _objects(self) -> ObjectFolder:
        return ObjectFolder(self.place, dict(self.settings), AT_WORK)


@dataclass(frozen=True)
class ShelfPlace:
    """The library for a task: the state at the start of its query, and the shelf, to which it writes."""

    before: ReadPlace
    shelf: LibraryPlace

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return self.shelf.shown

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""
        found = self.before.find(name)
        return self.shelf.find(name) if found is None else found

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""
        return sorted({*self.before.names(below), *self.shelf.names(below)})

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""
        return sorted({*self.before.top_names(), *self.shelf.top_names()})

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""
        with contextlib.suppress(FileNotFoundError):
            return self.shelf.identity(name)
        return self._before_of(name).identity(name)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Return a context with a file of the content under a name. Raises FileNotFoundError."""
        where: ReadPlace = self.shelf
        try:
            where.identity(name)
        except FileNotFoundError:
            where = self._before_of(name)
        with where.opened(name) as path:
            yield path

    def _before_of(self, name: str) -> ReadPlace:
        if _is_content(name) and self.shelf.find(f"{REMOVED}/{name}") is not None:
            raise FileNotFoundError(f"{self.shown}/{name}")
        return self.before

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content on the shelf unless the name has some already; return the content under the name."""
        found = self.before.find(name)
        return self.shelf.keep_first(name, content) if found is None else found

    def put(self, name: str, content: bytes) -> None:
        """Keep content on the shelf, in place of any other."""
        self.shelf.put(name, content)

    def remove(self, names: Sequence[str]) -> None:
        """Remove contents from the shelf, if they are there."""
        self.shelf.remove(names)


@dataclass(frozen=True)
class PublishedPlace(FolderPlace):
    """The library for the driver: its folder, and the shelf, on which tasks find what the driver writes.

    The shelf is written first: work that did not get there is not in the folder either, and so is repeated.
    """

    shelf: LibraryPlace

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content durably unless the name has some already; return the content under the name."""
        return super().keep_first(name, self.shelf.keep_first(name, content))

    def put(self, name: str, content: bytes) -> None:
        """Keep content durably, in place of any other."""
        self.shelf.put(name, content)
        super().put(name, content)

    def remove(self, names: Sequence[str]) -> None:
        """Remove contents, if they are there."""
        for name in names:
            if _is_content(name):
                # Tasks may know it from before, when their query started.
                self.shelf.keep_first(f"{REMOVED}/{name}", b"")
        self.shelf.remove(names)
        super().remove(names)

    def take_in(self) -> None:
        """Copy to the folder what tasks have left on the shelf."""
        take_in(self, self.shelf)


def take_in(folder: FolderPlace, shelf: LibraryPlace) -> None:
    """Copy to a folder everything on a shelf that it lacks."""
    own = FolderPlace(folder.folder)
    for name in shelf.names(""):
        kind, _, rest = name.partition("/")
        if kind in (REMOVED, FAILURES):
            continue
        if kind == ASKED:
            # It may be requested again, and then counts again.
            own.remove([f"{FAILURES}/{rest}"])
            own.keep_first(name, b"")
            shelf.remove([name, f"{FAILURES}/{rest}"])
            continue
        if not Path(folder.folder, name).exists():
            found = shelf.find(name)
            if found is None:
                # The run that owns the shelf has removed it, since no version has used it for long.
                continue
            if _is_content(name) and hashlib.sha256(found).hexdigest() != name:
                raise CheckpointError(
                    f"The checkpoint is damaged: {shelf.shown}/{name} has changed bytes. Restore the object from a "
                    "copy, or start from a savepoint with another checkpoint."
                )
            own.keep_first(name, found)


def _is_content(name: str) -> bool:
    """Return whether a name is that of the content of a model, which alone is in no folder of the library."""
    return "/" not in name
