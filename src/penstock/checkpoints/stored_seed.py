"""Stored seed: the initial state of a job for tasks that share only the object store with the driver.

The driver has the seed in its working folder, so the store has it, too: tasks read it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.checkpoints.stored_entries import StoredFile
from penstock.checkpoints.stored_pieces import StoredPieces
from penstock.objects.object_stores import Place
from penstock.runtime.initial_state import StoredEntries
from penstock.runtime.seed import seed_folder

__all__ = ["StoredSeed"]


class StoredSeed:
    """The seed of a checkpoint on an object store. Tasks get it in the state at the time of the plan.

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
    """A seed for a task: the places of its files in the objects below a place."""

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
        return _FetchedEntries(StoredPieces.below(self.place, self.settings), mine)


@dataclass
class _FetchedEntries:
    """The entries of a slot."""

    pieces: StoredPieces
    files: Mapping[str, StoredFile]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self.files)

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist. Raises CheckpointError for damage."""
        file = self.files.get(name)
        return None if file is None else self.pieces.content(file)
