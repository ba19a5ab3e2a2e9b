"""Silent server: it takes connections and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["silent_server"]


@contextmanager
def silent_server() -> Iterator[int]:
    """Take connections and answer nothing, until the block ends; gives the port."""
    taken: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, name="silent-server", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            # Closing alone does not wake the thread that accepts.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()
