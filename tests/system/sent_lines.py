"""A server that sends lines to each connected client, and records what it sent over which connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from penstock.machine.local_server import free_port

__all__ = ["LineServer"]

PAUSE_S = 0.05
PAGES = 5
# The numbers of a connection start at a multiple of this.
MANY = 1_000_000


@dataclass
class Connection:
    """What was sent over one connection, a hit of each page per round, and whether the client has read it all."""

    number: int
    rounds: int = 0
    is_read: bool = False

    def sent(self) -> list[tuple[str, int]]:
        """Return pages and numbers in order; the last round may have been sent in part."""
        numbers = range(self.number * MANY, self.number * MANY + self.rounds)
        return [(f"line{page}", number) for number in numbers for page in range(PAGES)]


class LineServer:
    """Sends hits as lines of JSON while it is feeding, else nothing; a context manager."""

    def __init__(self) -> None:
        self._port = free_port()
        self._feeding = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self.connections: list[Connection] = []

    @property
    def uri(self) -> str:
        return f"socket://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        self._ends.clear()
        listener = socket.create_server(("127.0.0.1", self._port))
        listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._serve, args=[listener])
        self._thread.start()

    def kill(self) -> None:
        """Close the connection and stop listening."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Send lines while the block runs; before and after, each connection ends at once."""
        self._feeding.set()
        try:
            yield
        finally:
            self._feeding.clear()

    def check(self, found: list[tuple[str, int]]) -> None:
        """Check that of each connection a prefix of its lines was found, once and in order; all of them if it
        ended.
        """
        for connection in self.connections:
            sent = connection.sent()
            own = [hit for hit in found if hit[1] // MANY == connection.number]
            assert own == (sent if connection.is_read else sent[: len(own)]), connection
        assert [number // MANY for _, number in found] == sorted(number // MANY for _, number in found)
        assert len(found) > sum(len(connection.sent()) for connection in self.connections) / 2

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            while not self._ends.is_set():
                with suppress(TimeoutError), listener.accept()[0] as client:
                    self._send(client)

    def _send(self, client: socket.socket) -> None:
        connection = Connection(len(self.connections))
        self.connections.append(connection)
        with suppress(ConnectionError):
            while self._feeding.is_set() and not self._ends.wait(PAUSE_S):
                connection.rounds += 1
                rows: list[dict[str, Any]] = [
                    {"page": page, "number": number} for page, number in connection.sent()[-PAGES:]
                ]
                client.sendall(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            client.shutdown(socket.SHUT_WR)
            # The client closes a connection once it has journaled everything; a killed client resets it.
            connection.is_read = client.recv(1) == b"" and self._ends.is_set()
