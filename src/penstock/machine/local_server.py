"""Local servers: a server's process on this machine, which is started until it answers, and ended with its children."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from penstock.errors import ExternalSystemError

__all__ = ["LocalServer", "free_port", "listens"]

_START_S: Final = 90.0
_LOOK_EVERY_S: Final = 0.1
_END_S: Final = 60.0
_SHOWN_LOG: Final = 2_000
_FIRST_PORT: Final = 15_000
_PORTS: Final = 15_000
_ATTEMPTS: Final = 100


# Ports this process has handed out. A UDP socket holds each, which no server of ours wants, until the process ends.
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens now.

    No process gets it from here again while this one lives. It is below those that the kernel gives to outgoing
    connections: one of these would be free now and taken by the time that a slow server has started, or starts again.
    Raises ExternalSystemError if none is found.
    """
    for _ in range(_ATTEMPTS):
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise ExternalSystemError(f"No port between {_FIRST_PORT} and {_FIRST_PORT + _PORTS} is free.")


def listens(port: int) -> bool:
    """Return whether something takes connections at a port of 127.0.0.1."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


class LocalServer:
    """One server, which keeps its ports and its data over restarts; a context manager."""

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        raise NotImplementedError

    def end(self) -> None:
        """End the server in an orderly way, so that it keeps what it has."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its children, and wait until the server has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            self._process.wait(_END_S)
            self._process = None

    def launch(
        self,
        command: Sequence[str],
        answers: Callable[[], bool],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        user: str | None = None,
    ) -> None:
        """Start a process, and wait until it answers. Raises ExternalSystemError when it does not within 90 s."""
        with self._log.open("ab") as log:
            # A separate session, so that our signals reach its children too, and Ctrl-C does not.
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
            )
        deadline = time.monotonic() + _START_S
        while not answers():
            if self._process.poll() is not None:
                raise ExternalSystemError(f"{self._name} ended at its start: {self._said()}")
            if time.monotonic() > deadline:
                raise ExternalSystemError(
                    f"{self._name} did not answer within {_START_S:.0f} s: {self._said()}"
                )
            time.sleep(_LOOK_EVERY_S)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN_LOG:].strip()
