"""A server that sends lines to the first client that connects, then closes the connection; shared by the examples."""

import socket
import time
from collections.abc import Iterable

__all__ = ["serve"]


def serve(server: socket.socket, lines: Iterable[str], per_second: float) -> None:
    """Send lines to the first client, at most `per_second`, until they end or the client disconnects."""
    connection, _ = server.accept()
    with connection:
        began = time.monotonic()
        for number, line in enumerate(lines):
            wait_s = began + number / per_second - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            try:
                connection.sendall(f"{line}\n".encode())
            except ConnectionError:
                return
