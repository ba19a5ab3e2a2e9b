"""State files: the files of Spark's state for a reader in this process, wherever the tasks have written them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.checkpoints.state_place import STATE, state_place
from penstock.checkpoints.stored_home import home_of, place_in
from penstock.errors import CheckpointError
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Place
from penstock.runtime.state_operators import operator_of

__all__ = ["StateFiles", "state_files", "state_target"]


class StateFiles:
    """The files of the state in a folder that has Spark's part of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def operator_of(self, node: str) -> int:
        """Return the number of Spark's operator for a step, see `operator_of`."""
        return operator_of(self._folder, node)

    def path(self, name: str) -> Path:
        """Return the path of a file of the state, by its name in the state's folder; it need not exist."""
        return self._folder / STATE / name


class _FetchedFiles(StateFiles):
    """The files of the state on an object store; each is fetched when it is first asked for."""

    def __init__(self, objects: ObjectFolder, folder: Path) -> None:
        super().__init__(folder)
        self._objects = objects
        self._has_descriptions = False

    def operator_of(self, node: str) -> int:
        if not self._has_descriptions:
            for found in self._objects.objects():
                if found.name.split("/")[1:2] == ["_metadata"]:
                    self.path(found.name)
            self._has_descriptions = True
        return super().operator_of(node)

    def path(self, name: str) -> Path:
        path = super().path(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.tmp")
            with suppress(FileNotFoundError):
                with part.open("wb") as file:
                    self._objects.copy(name, file)
                part.replace(path)
        return path


def state_target(folder: Path) -> Place | None:
    """Return the prefix on an object store that has the state of a checkpoint, None if the state is in the folder.

    Raises CheckpointError for a copy of a working folder, which does not say where its home is.
    """
    place = state_place(folder)
    if place is None:
        return None
    home = home_of(folder)
    if home is None:
        raise CheckpointError(
            f"The state of the checkpoint {folder} is on an object store, and the folder does not say where. Name the "
            "checkpoint by its URI, where the job runs."
        )
    return place_in(home, place.prefix)


@contextmanager
def state_files(folder: Path) -> Iterator[StateFiles]:
    """Open the files of the state of a checkpoint. Those of a store are in a folder for temporary files meanwhile."""
    target = state_target(folder)
    if target is None:
        yield StateFiles(folder)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-state-") as temporary:
        yield _FetchedFiles(ObjectFolder(target, {}, IN_HASTE), Path(temporary))
