"""Stored seed: the initial state of a job for tasks that share only the object store with the driver.

The driver has the seed in its working folder, so the store has it, too: tasks read it from the objects in which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.checkpoints.stored_entries import LOG, Piece, StoredFile, decode_entry, digest_of
from penstock.errors import CheckpointError
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.objects.object_stores import Place
from penstock.runtime.initial_state import StoredEntries
from penstock.runtime.seed import seed_folder

__all__ = ["StoredSeed"]


class StoredSeed:
    """The seed of a checkpoint on an object store. Tasks get it as the store has it when they get the plan.

    `settings` are environment variables with which tasks find the store.
    """

    def __init__(self, stored: StoredCheckpoint, folder: str, settings: Mapping[str, str]) -> None:
        self._stored: Final = stored
        self._folder: Final = folder
        self._settings: Final = dict(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        files = self._stored.stored_files(self._folder)
        return _SeedOfTask, (self._stored.place_of(""), self._settings, self._folder, files)

    def entries(self, node: str, first_key_group: int) -> StoredEntries:
        """Return the stored entries of a slot of a step."""
        make, arguments = self.__reduce__()
        found: StoredEntries = make(*arguments).entries(node, first_key_group)
        return found


@dataclass(frozen=True)
class _SeedOfTask:
    """A seed as a task has it: where its files are in the objects below a place."""

    place: Place
    settings: Mapping[str, str]
    folder: str
    files: Mapping[str, StoredFile]

    def entries(self, node: str, first_key_group: int) -> StoredEntries:
        """Return the stored entries of a slot of a step."""
        prefix = seed_folder(Path(self.folder), node, first_key_group).as_posix()
        mine = {
            PurePosixPath(path).name.replace("~", "/"): file
            for path, file in self.files.items()
            if path.startswith(f"{prefix}/")
        }
        place = Place(self.place.scheme, self.place.host, self.place.name.rstrip("/"))
        return _FetchedEntries(ObjectFolder(place, self.settings, AT_WORK), mine)


@dataclass
class _FetchedEntries:
    """The entries of a slot. Several may be in one entry of the log, which is kept while they are read."""

    objects: ObjectFolder
    files: Mapping[str, StoredFile]
    _kept: tuple[str, memoryview] = field(default=("", memoryview(b"")), init=False)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self.files)

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist. Raises CheckpointError for damage."""
        file = self.files.get(name)
        return None if file is None else b"".join(map(self._content, file.pieces))

    def _content(self, piece: Piece) -> bytes | memoryview:
        if piece.object.startswith(f"{LOG}/"):
            if self._kept[0] != piece.object:
                shown = f"{self.objects.place.shown}/{piece.object}"
                self._kept = piece.object, decode_entry(self.objects.read(piece.object), shown)[1]
            found: bytes | memoryview = self._kept[1][piece.offset : piece.offset + piece.length]
        else:
            found = self.objects.read_range(piece.object, piece.offset, piece.length)
        if len(found) != piece.length or digest_of(found) != piece.digest:
            raise CheckpointError(
                f"The checkpoint is damaged: the object {piece.object} in {self.objects.place.shown} has changed "
                "bytes. Restore the object from a copy, or start from a savepoint with another checkpoint."
            )
        return found
