"""A real PostgreSQL for tests: on a free port, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from debian import find_or_install
from free_ports import free_port

START_S: Final = 60.0
PASSWORD: Final = "s3cr3t"


def postgres_programs() -> Path:
    """The folder of initdb and postgres, installed when that is possible; else the test is skipped."""
    return find_or_install(_installed, "postgresql", "PostgreSQL")


def _installed() -> Path | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return versions[-1].parent if versions else Path(on_path).parent if on_path else None


class PostgresServer:
    """One server; a context manager. Each test takes a schema of its own."""

    def __init__(self) -> None:
        self._programs = postgres_programs()
        self.port = free_port()
        # It refuses to run as root, and its user cannot see into the folders of the tests.
        self._user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._user:
            shutil.chown(self.folder, "postgres", "postgres")
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb",
            "-D",
            self.data,
            "-U",
            "tester",
            f"--pwfile={password}",
            "-A",
            "scram-sha-256",
            "--no-sync",
        )
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    str(self._programs / "postgres"),
                    *("-D", self.data, "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)),
                    # Nothing here must outlive the machine, and a slow disk would take minutes.
                    *("-c", "fsync=off"),
                    *("-c", "max_prepared_transactions=4"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._user,
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError as e:
                told = f"PostgreSQL does not answer: {e} {(self.folder / 'log').read_text()[-2000:]}"
                assert self._server.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        """End the server and its sessions at once."""
        if self._server is not None:
            # All sessions end at once; after a kill -9 the server's children would hold the folder for a while.
            self._server.send_signal(signal.SIGINT)
            self._server.wait(60)
            self._server = None

    def url(self, database: str) -> str:
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def new_schema(self) -> str:
        """The URL of an empty schema, which is much quicker to make than a database, and serves as one."""
        name = f"schema_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[call-overload,unused-ignore]
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            **self._user,
        )
        assert done.returncode == 0, done.stderr
