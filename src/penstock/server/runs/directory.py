"""Directory: the manager's folder, with jobs, runs and savepoints. Only this module builds paths, from known ids."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

__all__ = ["ADDRESS_FILE", "HomeError", "ServerDirectory", "make_private"]

ADDRESS_FILE: Final = "server.json"
"""The file in the manager's folder with the server's URL and a token for the command line, private to its owner."""


class HomeError(PenstockError):
    """A manager's folder that cannot be created, or that other users could enter."""

    fault = "user"


@dataclass(frozen=True)
class ServerDirectory:
    """The folder of a manager.

    `shared` has the checkpoints and savepoints, if managers on several machines share them: a folder, or a prefix on an
    object store.
    """

    root: Path
    shared: Path | str | None = None

    @property
    def store(self) -> Path:
        """The file of the default store."""
        return self.root / "store.db"

    @property
    def savepoints(self) -> str:
        """The place of all savepoints, each in a folder named by its id."""
        return f"{self.shared or self.root}/savepoints"

    @property
    def dumps(self) -> Path:
        """The folder of all dumps, each in a folder named by the id of its operation."""
        return self.root / "dumps"

    def checkpoint(self, job_id: str) -> str:
        """Return the checkpoint of a job, unless the job has taken over the checkpoint of another one."""
        return f"{self.shared or self.root}/jobs/{job_id}/checkpoint"

    def run(self, job_id: str, epoch: int) -> Path:
        """Return the folder of a run."""
        return self.root / "jobs" / job_id / "runs" / str(epoch)

    def scaling(self, job_id: str) -> Path:
        """Return the file with the last scaling decision on a job."""
        return self.root / "jobs" / job_id / "scaling.json"

    def operation(self, operation_id: str) -> Path:
        """Return the folder of an operation with its own process."""
        return self.root / "operations" / operation_id


def make_private(root: Path) -> None:
    """Create a folder that only its owner can enter, or restrict an existing one.

    Raises HomeError if it cannot be created, or belongs to another user and others can enter it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(root.stat().st_mode)
    except OSError as e:
        raise HomeError(
            f"The home {root} cannot be created ({e.strerror}). Choose another folder with --home."
        ) from None
    try:
        if mode & 0o077:
            root.chmod(mode & 0o700)
    except PermissionError:
        # The volume of a container belongs to root and the group of the container.
        if mode & 0o007:
            raise HomeError(
                f"The home {root} belongs to another user, and others can enter it, but it has the bindings and state "
                f"of jobs. Choose a folder that the server can create, such as --home {root / 'server'}."
            ) from None
