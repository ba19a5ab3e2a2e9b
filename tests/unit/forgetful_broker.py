"""Forgetful broker: tells a client of itself, or of no brokers at all, as one that has just started may."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Final, Self

__all__ = ["ForgetfulBroker"]

_API_VERSIONS: Final = 18
_METADATA: Final = 3
# The requests of a producer that is idempotent, with their newest versions that this broker names.
_VERSIONS: Final = {0: 7, 1: 4, _METADATA: 1, 22: 1, _API_VERSIONS: 0}
_UNSUPPORTED: Final = 35
_NO_LEADER: Final = 5


class ForgetfulBroker:
    """Answers which requests and which brokers there are, and nothing else. A context manager."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self._serving = threading.Thread(target=self._serve)
        self.has_forgotten = False
        # How many brokers each answer has named.
        self.told: list[int] = []

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return f"127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()
        self.disconnect()

    def disconnect(self) -> None:
        """End all connections."""
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._answer_all, args=(client,), daemon=True).start()

    def _answer_all(self, client: socket.socket) -> None:
        # A client that has gone leaves no size to read.
        with suppress(OSError, struct.error), client, client.makefile("rb") as file:
            while True:
                (size,) = struct.unpack("!i", file.read(4))
                api, version, number = struct.unpack("!hhi", file.read(size)[:8])
                body = self._answer(api, version)
                if body is not None:
                    client.sendall(struct.pack("!ii", len(body) + 4, number) + body)

    def _answer(self, api: int, version: int) -> bytes | None:
        if api == _API_VERSIONS:
            versions = b"".join(struct.pack("!hhh", key, 0, newest) for key, newest in _VERSIONS.items())
            return struct.pack("!hi", _UNSUPPORTED if version else 0, len(_VERSIONS)) + versions
        return self._metadata() if api == _METADATA else None

    def _metadata(self) -> bytes:
        count = 0 if self.has_forgotten else 1
        self.told.append(count)
        own = struct.pack("!i", 1) + _text("127.0.0.1") + struct.pack("!ih", self._port, -1)
        error, leader = (0, 1) if count else (_NO_LEADER, -1)
        partition = struct.pack("!hiiiiii", error, 0, leader, 1, 1, 1, 1)
        topic = struct.pack("!h", 0) + _text(self._topic) + struct.pack("!?i", False, 1) + partition
        return struct.pack("!i", count) + own * count + struct.pack("!ii", leader, 1) + topic


def _text(text: str) -> bytes:
    return struct.pack("!h", len(text)) + text.encode()
