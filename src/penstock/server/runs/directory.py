"""The manager's folder: where jobs, runs and savepoints are. Only this module makes paths, from known ids."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

__all__ = ["ADDRESS_FILE", "HomeError", "ServerDirectory", "make_private"]

ADDRESS_FILE: Final = "server.json"
"""The file in the manager's folder, for its owner alone, with the server's URL and a token for the command line."""


class HomeError(PenstockError):
    """The manager's folder cannot be created, or others could enter it."""

    fault = "user"


@dataclass(frozen=True)
class ServerDirectory:
    """The folder of a manager.

    `shared` is the folder of checkpoints and savepoints, for managers on other machines too.
    """

    root: Path
    shared: Path | None = None

    @property
    def store(self) -> Path:
        """The store, by default."""
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
        """The checkpoint of a job, unless it has taken over another's."""
        return (self.shared or self.root) / "jobs" / job_id / "checkpoint"

    def run(self, job_id: str, epoch: int) -> Path:
        """The folder of a run."""
        return self.root / "jobs" / job_id / "runs" / str(epoch)

    def scaling(self, job_id: str) -> Path:
        """The last decision on the scaling of a job."""
        return self.root / "jobs" / job_id / "scaling.json"

    def operation(self, operation_id: str) -> Path:
        """The folder of an operation with its own process."""
        return self.root / "operations" / operation_id


def make_private(root: Path) -> None:
    """Create a folder that only its owner may enter, or restrict an existing one.

    Raises HomeError when it belongs to somebody else and others may enter it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(root.stat().st_mode)
    except OSError as e:
        raise HomeError(
            f"The home {root} cannot be created ({e.strerror}). Name another folder with --home."
        ) from None
    try:
        if mode & 0o077:
            root.chmod(mode & 0o700)
    except PermissionError:
        # The volume of a container belongs to root and the group of the container.
        if mode & 0o007:
            raise HomeError(
                f"The home {root} belongs to another user, and others may enter it; it holds bindings and the state of "
                f"jobs. Name a folder that the server can create, such as --home {root / 'server'}."
            ) from None
