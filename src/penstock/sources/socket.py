"""Socket source: lines from a server, journaled before the job sees them."""

from __future__ import annotations

import socket
import time
from typing import Final

from penstock.bindings.types import SocketBinding
from penstock.errors import ExternalSystemError
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import IDLE_S, MAX_BYTES, Receiver, group_end_s

__all__ = ["SocketReceiver"]

_LONGEST_LINE_BYTES: Final = 64 << 20
_CONNECT_S: Final = 5.0


class SocketReceiver(Receiver[socket.socket]):
    """A receiver of the lines of a server, as its client.

    Lines are made durable in groups, at most about 10 ms after they arrive. In bounded runs the end of the connection
    is the end of the stream; otherwise the receiver reconnects, since a streaming source has no end. Blank lines are
    skipped, the last line may lack its line end, and a line of more than 64 MB is cut. The server must keep the lines
    that it sends while no client is connected: a socket cannot ask for them again. The same holds for lines in flight,
    for less than 10 ms, when the process was killed.
    """

    def __init__(self, binding: SocketBinding, journal: JournalWriter, *, bounded: bool = False) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._address = (binding.host, binding.port)

    def _connect(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, timeout=_CONNECT_S)
        except OSError as e:
            host, port = self._address
            raise ExternalSystemError(
                f"Stream {self._stream!r}: nothing answers at {host}:{port} ({e.strerror or e}). "
                "Start the server first."
            ) from e

    def _receive(self, connection: socket.socket) -> None:
        """Journal what arrives until the server ends the connection."""
        lines = _LineBuffer()
        ended = False
        committed_s = 0.0
        while not self._stopping.is_set() and not ended:
            data, ended = _group(connection, group_end_s(committed_s))
            if complete := lines.take(data, at_end=ended):
                self._journal.append(complete)
                committed_s = time.monotonic()


class _LineBuffer:
    """A buffer that cuts bytes into lines, as they arrive."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0

    def take(self, data: bytes, *, at_end: bool) -> list[bytes]:
        """Return the lines that this data completes, without blank ones; at the end also the last one."""
        self._waiting.append(data)
        self._size += len(data)
        if b"\n" not in data and not at_end and self._size <= _LONGEST_LINE_BYTES:
            return []
        *lines, rest = b"".join(self._waiting).split(b"\n")
        if rest and (at_end or len(rest) > _LONGEST_LINE_BYTES):
            lines.append(rest)
            rest = b""
        self._waiting, self._size = [rest], len(rest)
        # Lines with their line ends are decoded in bulk without a copy.
        return [line + b"\n" for line in lines if line and not line.isspace()]


def _group(connection: socket.socket, until_s: float) -> tuple[bytes, bool]:
    """Return what arrives up to a time (at least the next bytes, if any), and whether the server ended the connection.

    A connection that breaks counts as ended: the lines before that are complete.
    """
    parts: list[bytes] = []
    size = 0
    wait_s = IDLE_S
    while size < MAX_BYTES and wait_s > 0:
        connection.settimeout(wait_s)
        try:
            part = connection.recv(1 << 20)
        except TimeoutError:
            break
        except ConnectionError:
            part = b""
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
        wait_s = until_s - time.monotonic()
    return b"".join(parts), False
