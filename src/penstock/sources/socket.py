"""Socket source: lines from a server, journaled before the job sees them."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Final, Self

from penstock.bindings import SocketBinding
from penstock.errors import ExternalSystemError, PenstockError
from penstock.sources.journal import JournalWriter

__all__ = ["SocketReceiver"]

_GROUP_S: Final = 0.01
_IDLE_S: Final = 0.2
_MOST_BYTES: Final = 8 << 20
_LONGEST_LINE_BYTES: Final = 64 << 20
_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class SocketReceiver:
    """Receives the lines of a server, as its client, and appends them to a journal; a context manager.

    Lines are made durable in groups, about 10 ms after they came at the latest. When the server ends the connection the
    receiver connects again, with growing pauses, since a streaming source has no end; entering it raises
    ExternalSystemError when nothing listens there. `wait_for_end` is for bounded runs, where the end of the connection
    is the end of the stream. The last line may lack its line end, and a line of more than 64 MB is cut. Lines that the
    server sends while nobody is connected are the server's to keep: a socket cannot ask for them again. So are those
    that were on their way, for less than 10 ms, when the process was killed.
    """

    def __init__(self, binding: SocketBinding, journal: JournalWriter) -> None:
        self._binding = binding
        self._journal = journal
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"socket-{binding.stream}", daemon=True)
        self._first: socket.socket | None = None
        self._connect_again = True
        self.error: PenstockError | None = None

    @property
    def _where(self) -> str:
        return f"{self._binding.host}:{self._binding.port}"

    def __enter__(self) -> Self:
        try:
            self._first = self._connect()
        except OSError as e:
            self._journal.close()
            raise ExternalSystemError(
                f"Stream {self._binding.stream!r}: nothing answers at {self._where} ({e.strerror or e}). "
                "Start the server first."
            ) from e
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._journal.close()

    def wait_for_end(self, stop: threading.Event) -> None:
        """Wait until the server has ended the connection and its lines are durable, or until `stop` is set.

        Nothing is received after that.
        """
        self._connect_again = False
        while not self._ended.wait(0.1) and not stop.is_set():
            if self.error is not None:
                raise self.error

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set() and (self._connect_again or not self._ended.is_set()):
            try:
                with self._first or self._connect() as connection:
                    self._first = None
                    received = self._receive(connection)
                if received:
                    pause = _FIRST_PAUSE_S
                self._ended.set()
            except OSError:
                # The server is away; the next attempt follows after the pause.
                pass
            except PenstockError as e:
                self.error = e
                return
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._binding.host, self._binding.port), timeout=_CONNECT_S)

    def _receive(self, connection: socket.socket) -> bool:
        """Journal what comes until the server ends the connection; whether anything came."""
        lines = _LineBuffer()
        received = ended = False
        committed_s = 0.0
        while not self._stopping.is_set() and not ended:
            # Only lines behind a group that was just committed have to wait.
            data, ended = _group(connection, committed_s + _GROUP_S)
            received = received or bool(data)
            if self._journal.append(lines.take(data, at_end=ended)) and data:
                committed_s = time.monotonic()
        return received


class _LineBuffer:
    """Cuts bytes into lines, as they come."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0

    def take(self, data: bytes, *, at_end: bool) -> list[bytes]:
        """The lines that are complete with this data; at the end the last one as well, without its line end."""
        self._waiting.append(data)
        self._size += len(data)
        if b"\n" not in data and not at_end and self._size <= _LONGEST_LINE_BYTES:
            return []
        *lines, rest = b"".join(self._waiting).split(b"\n")
        if rest and (at_end or len(rest) > _LONGEST_LINE_BYTES):
            lines.append(rest)
            rest = b""
        self._waiting, self._size = [rest], len(rest)
        return lines


def _group(connection: socket.socket, until_s: float) -> tuple[bytes, bool]:
    """What comes up to a time (at least the next bytes, if any do), and whether the server ended the connection.

    A connection that breaks counts as ended: the lines before that are there.
    """
    parts: list[bytes] = []
    size = 0
    wait_s = _IDLE_S
    while size < _MOST_BYTES and wait_s > 0:
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
