"""Stored library: the library of models of a checkpoint on an object store, for its driver and its tasks.

The driver has it in its working folder, so the log has it, too. What is new, driver and tasks leave for each other on
the shelf of the run, a prefix beside the log. Only the run itself looks there, and the next one, which takes in what
the driver had no time for: the log names the shelf, in the entry with what was taken in from the one before.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.spark_state_files import damage
from penstock.checkpoints.stored_checkpoint import SHELVES, StoredCheckpoint
from penstock.checkpoints.stored_entries import StoredFile
from penstock.checkpoints.stored_pieces import StoredPieces
from penstock.models.library import MODELS, is_content_name
from penstock.models.library_places import (
    ANSWERS,
    ASKED,
    FAILURES,
    FolderPlace,
    LibraryPlace,
    PublishedPlace,
    ShelfPlace,
    StorePlace,
    take_in,
)
from penstock.objects.object_stores import Place

__all__ = ["StoredLibrary"]

_SHELF_FILE: Final = "shelf.json"


class _Shelf(msgspec.Struct, frozen=True):
    """The shelf of the run that has saved the checkpoint last."""

    id: str


@dataclass(frozen=True)
class StoredLibrary:
    """The library of a run. `settings` are environment variables with which tasks find the store."""

    stored: StoredCheckpoint
    settings: Mapping[str, str]

    @property
    def of_driver(self) -> PublishedPlace:
        """The library for the driver."""
        return PublishedPlace(str(self._folder), self._shelf(self.stored.shelf_id))

    def of_tasks(self, *, apart: bool) -> LibraryPlace:
        """Return the library for tasks, which can read the folder unless they are `apart`."""
        before = _ModelsInLog(self) if apart else FolderPlace(str(self._folder))
        return ShelfPlace(before, self._shelf(self.stored.shelf_id))

    def take_over(self) -> None:
        """Take in the content that the previous run has left on its shelf, and make the log name the shelf of this run.

        The run owns the checkpoint, and none of its tasks has begun.
        """
        path = self.stored.folder / _SHELF_FILE
        try:
            before = msgspec.json.decode(path.read_bytes(), type=_Shelf)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as e:
            raise damage(path, f"cannot be read ({e})") from e
        else:
            take_in(FolderPlace(str(self._folder)), self._shelf(before.id))
        write_atomically(path, msgspec.json.encode(_Shelf(self.stored.shelf_id)))
        self.stored.save()

    @property
    def _folder(self) -> Path:
        return self.stored.folder / MODELS

    def _shelf(self, number: str) -> StorePlace:
        return StorePlace(self.stored.place_of(f"{SHELVES}/{number}"), tuple(self.settings.items()))

    def before(self) -> tuple[dict[str, bytes], dict[str, StoredFile]]:
        """Return the content of the log: small files with their content, and the places of contents of models."""
        files = {
            path.removeprefix(f"{MODELS}/"): file for path, file in self.stored.stored_files(MODELS).items()
        }
        contents = {name: file for name, file in files.items() if is_content_name(name)}
        small = {}
        for name in files.keys() - contents.keys():
            found = FolderPlace(str(self._folder)).find(name)
            # Requests and failures change.
            if found is not None and name.partition("/")[0] not in (ANSWERS, ASKED, FAILURES):
                small[name] = found
        return small, contents


class _ModelsInLog:
    """The library in the log. Tasks get it in the state at the time of the plan."""

    def __init__(self, library: StoredLibrary) -> None:
        self._library: Final = library

    def __reduce__(self) -> tuple[Any, ...]:
        stored = self._library.stored
        return ModelsOfTask, (stored.place_of(""), self._library.settings, *self._library.before())

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return f"{self._library.stored.shown}/{MODELS}"

    def _found(self) -> ModelsOfTask:
        make, arguments = self.__reduce__()
        found: ModelsOfTask = make(*arguments)
        return found

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""
        return self._found().find(name)

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""
        return self._found().names(below)

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""
        return self._found().top_names()

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""
        return self._found().identity(name)

    def opened(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context with a file of the content under a name. Raises FileNotFoundError."""
        return self._found().opened(name)


@dataclass(frozen=True)
class ModelsOfTask:
    """The library in the log at that time: small files, and the places of contents in objects below a place."""

    place: Place
    settings: Mapping[str, str]
    small: Mapping[str, bytes]
    contents: Mapping[str, StoredFile]

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return f"{self.place.shown}{MODELS}"

    def find(self, name: str) -> bytes | None:
        """Return the content under a name, None without one."""
        return self._content(name) if name in self.contents else self.small.get(name)

    def names(self, below: str) -> list[str]:
        """Return the names below a folder of the place, at any depth, sorted."""
        return sorted(name for name in self.small if name.startswith(f"{below}/"))

    def top_names(self) -> list[str]:
        """Return the names directly in the place, sorted."""
        return sorted(self.contents)

    def identity(self, name: str) -> Hashable:
        """Return an identity that changes when the content under a name does. Raises FileNotFoundError."""
        if name not in self.contents and name not in self.small:
            raise FileNotFoundError(f"{self.shown}/{name}")
        return self.shown, name

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Return a context with a file of the content under a name. Raises FileNotFoundError."""
        found = self.find(name)
        if found is None:
            raise FileNotFoundError(f"{self.shown}/{name}")
        with tempfile.NamedTemporaryFile(prefix="penstock-") as file:
            file.write(found)
            file.flush()
            yield Path(file.name)

    def _content(self, name: str) -> bytes:
        return StoredPieces.below(self.place, self.settings).content(self.contents[name])
