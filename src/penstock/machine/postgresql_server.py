"""PostgreSQL: a real server on this machine, for the demo and tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from penstock.errors import ExternalSystemError
from penstock.machine.debian_packages import find_or_install
from penstock.machine.local_server import LocalServer, free_port

__all__ = ["LocalPostgres", "postgres_programs"]

_ROLE: Final = "tester"
# The server refuses to run as root; Debian's package has made this user.
_USER: Final = "postgres"


def postgres_programs() -> Path:
    """Return the folder of initdb and postgres. Raises ExternalSystemError where there are none."""
    return find_or_install(_installed, "postgresql", "PostgreSQL")


def _installed() -> Path | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return versions[-1].parent if versions else Path(on_path).parent if on_path else None


class LocalPostgres(LocalServer):
    """One server with the role `tester`, in a temporary folder of its own; a context manager.

    Nothing of it outlives the machine: it does not wait for the disk.
    """

    def __init__(self, password: str) -> None:
        self._programs = postgres_programs()
        self._password = password
        self.port = free_port()
        self._user = _USER if os.geteuid() == 0 else None
        # The server's user cannot see into other folders of root.
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        super().__init__("PostgreSQL", self.folder / "log")

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def data(self) -> str:
        """The folder of the server's data."""
        return str(self.folder / "data")

    def start(self) -> None:
        """Start the server, with its data made before the first time, and wait until it answers."""
        if not Path(self.data).exists():
            self._init()
        place = ("-D", self.data, "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder))
        self.launch(
            [str(self._programs / "postgres"), *place, "-c", "fsync=off"],
            self._answers,
            folder=self.folder,
            user=self._user,
        )

    def kill(self) -> None:
        """End the server and its sessions at once."""
        # After a kill -9 the server's children would hold the folder for a while.
        self.signal(signal.SIGINT)

    def url(self, database: str) -> str:
        """Return the URL of a database; `postgres` is there from the start."""
        return f"postgresql://{_ROLE}:{self._password}@127.0.0.1:{self.port}/{database}"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _init(self) -> None:
        if self._user is not None:
            shutil.chown(self.folder, self._user, self._user)
        password = self.folder / "password"
        password.write_text(self._password)
        password.chmod(0o644)
        made = subprocess.run(
            [
                str(self._programs / "initdb"),
                *("-D", self.data, "-U", _ROLE, f"--pwfile={password}", "-A", "scram-sha-256", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            user=self._user,
            group=self._user,
        )
        if made.returncode:
            raise ExternalSystemError(f"PostgreSQL cannot be set up: {made.stderr.strip()}")
