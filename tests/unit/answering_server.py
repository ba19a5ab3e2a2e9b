"""A web server that answers as a test wants it to, also wrongly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

__all__ = ["Answer", "answering"]

Answer = Callable[[socket.socket, bytes], object]
"""What to do with a connection and the request that has come by it."""


@contextmanager
def answering(answer: Answer, asked: list[bytes] | None = None) -> Iterator[int]:
    """A web server that answers each request in its own way; gives its port."""

    def one(connection: socket.socket) -> None:
        with closing(connection), suppress(OSError):
            request = connection.recv(1 << 16)
            if asked is not None:
                asked.append(request)
            answer(connection, request)

    def all_of_them() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=all_of_them, daemon=True).start()
        yield server.getsockname()[1]
        # Closing alone does not wake the thread that accepts.
        server.shutdown(socket.SHUT_RDWR)
