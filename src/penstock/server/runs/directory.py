"""The manager's folder: where jobs, runs and savepoints are. Paths are made here, from ids that were looked up."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

__all__ = ["ADDRESS_FILE", "HomeError", "ServerDirectory", "make_private"]

ADDRESS_FILE: Final = "server.json"
"""The file in the manager's folder, for its owner alone, by which the command line finds the server and is let in."""


class HomeError(PenstockError):
    """The manager's folder cannot be made, or others could enter it."""

    fault = "user"


@dataclass(frozen=True)
class ServerDirectory:
    """The folder of a manager.

    With `shared` checkpoints and savepoints are there, for managers on other machines too.
    """

    root: Path
    shared: Path | None = None

    @property
    def store(self) -> Path:
        """The store, unless it is elsewhere."""
        return self.root / "store.db"

    @property
    def savepoints(self) -> Path:
        """The savepoints of all jobs, each in a folder by its id."""
        return (self.shared or self.root) / "savepoints"

    @property
    def dumps(self) -> Path:
        """The dumps of all jobs, each in a folder by the id of its operation."""
        return self.root / "dumps"

    def checkpoint(self, job_id: str) -> Path:
        """The checkpoint of a job that has not taken over another's."""
        return (self.shared or self.root) / "jobs" / job_id / "checkpoint"

    def run(self, job_id: str, epoch: int) -> Path:
        """What is known of a run."""
        return self.root / "jobs" / job_id / "runs" / str(epoch)

    def scaling(self, job_id: str) -> Path:
        """What was decided on the scaling of a job last."""
        return self.root / "jobs" / job_id / "scaling.json"

    def operation(self, operation_id: str) -> Path:
        """What is known of an operation that has a process of its own."""
        return self.root / "operations" / operation_id


def make_private(root: Path) -> None:
    """Make a folder that its owner alone may enter, or take the right from others where there is one.

    Raises HomeError when it belongs to somebody else and others may enter it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(root.stat().st_mode)
    except OSError as e:
        raise HomeError(
            f"The home {root} cannot be made ({e.strerror}). Name another folder with --home."
        ) from None
    try:
        if mode & 0o077:
            root.chmod(mode & 0o700)
    except PermissionError:
        # The volume of a container belongs to root, and to the group of the container.
        if mode & 0o007:
            raise HomeError(
                f"The home {root} belongs to another user, and others may enter it; bindings and what jobs hold are in "
                f"there. Name a folder that the server may make, such as --home {root / 'server'}."
            ) from None
