"""A real Redis for tests: on free ports, in a folder of its own, which tests kill and restart."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import redis
from certificates import Authority
from debian import find_or_install

from penstock.machine.local_server import free_port

START_S: Final = 30.0
PASSWORD: Final = "s3cr3t/pass"


def _program() -> Path | None:
    found = shutil.which("redis-server")
    return Path(found) if found else None


class RedisServer:
    """One server that appends each write to a file before it answers; a context manager. Its ports stay the same."""

    def __init__(self, folder: Path) -> None:
        self._program = find_or_install(_program, "redis-server", "Redis")
        self._folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self.authority = Authority(folder / "certificates", "tests")
        self._certificate, self._key = self.authority.sign("redis", "IP:127.0.0.1")
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "tls-port": self.tls_port,
            "tls-cert-file": self._certificate,
            "tls-key-file": self._key,
            "tls-ca-cert-file": self.authority.certificate,
            "tls-auth-clients": "no",
            "requirepass": PASSWORD,
            "dir": self._folder,
            "appendonly": "yes",
            # With `everysec` it answers before it appends while its disk is busy.
            "appendfsync": "no",
            "save": "",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen([str(self._program), *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while True:
            told = (self._folder / "log").read_text()[-2000:]
            assert self._server.poll() is None, told
            assert time.monotonic() < deadline, told
            try:
                with self.client() as client:
                    client.ping()
            except (redis.ConnectionError, redis.BusyLoadingError):
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kill the server."""
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait(30)
            self._server = None

    def signal(self, what: int) -> None:
        """Suspend the server, or let it continue."""
        assert self._server is not None
        self._server.send_signal(what)

    def client(self, database: int = 0) -> Any:
        return redis.Redis(port=self.port, db=database, password=PASSWORD, decode_responses=True)

    def uri(
        self, key: str, query: str = "", *, scheme: str = "redis", password: str = "s3cr3t%2Fpass"
    ) -> str:
        port = self.tls_port if scheme == "rediss" else self.port
        return f"{scheme}://:{password}@127.0.0.1:{port}/{key}{query}"
