"""The socket receiver: every line that the server sends is in the journal, despite lost connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.bindings.types import SocketBinding
from penstock.errors import CheckpointError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.socket import SocketReceiver

TEXT = record_type("line STRING")


class Server:
    """A server on a free port; each of the given functions serves one connection."""

    def __init__(self, *serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._serve = serve
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            for serve in self._serve:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection:
                    serve(connection)

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def receiving(folder: Path, server: Server, *, bounded: bool = False) -> Iterator[SocketReceiver]:
    binding = SocketBinding("readings", f"socket://127.0.0.1:{server.port}", "127.0.0.1", server.port)
    try:
        with SocketReceiver(binding, JournalWriter(folder), bounded=bounded) as receiver:
            yield receiver
    finally:
        server.close()


def lines(folder: Path) -> list[bytes]:
    log = JournalLog(folder)
    splits = log.splits(0, log.latest(0, limited=False), 1)
    chunks = [chunk for split in splits for chunk in log.read([split], TEXT)]
    return [line.rstrip(b"\n") for chunk in chunks for line in chunk.raw.to_pylist()]  # type: ignore[union-attr]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hold(connection: socket.socket) -> None:
    connection.recv(1)


def test_the_end_of_the_connection_is_the_end_of_a_bounded_run(tmp_path: Path) -> None:
    """All lines are durable when `wait_for_end` returns: an unterminated last line included, blank ones
    excluded.
    """

    def serve(connection: socket.socket) -> None:
        for i in range(2_000):
            connection.sendall(b"line %d\n" % i)
        connection.sendall(b"\n\nla")
        time.sleep(0.05)
        connection.sendall(b"st")

    server = Server(serve, serve)
    with receiving(tmp_path, server, bounded=True) as receiver:
        receiver.wait_for_end(threading.Event())
        assert lines(tmp_path) == [b"line %d" % i for i in range(2_000)] + [b"last"]
        time.sleep(0.3)
        assert server.connections == 1, "a bounded run does not begin again"


def test_lines_are_durable_at_once(tmp_path: Path) -> None:
    """A line is committed without waiting for more."""
    sent = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"a\nhalf")
        sent.set()
        hold(connection)

    with receiving(tmp_path, Server(serve)):
        assert sent.wait(10)
        start = time.monotonic()
        wait_until(lambda: lines(tmp_path) == [b"a"])
        assert time.monotonic() - start < 5


def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    """The server may close or reset it; lines received before are kept."""

    def close(connection: socket.socket) -> None:
        connection.sendall(b"a\nb\n")

    def reset(connection: socket.socket) -> None:
        connection.sendall(b"c\n")
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def go_on(connection: socket.socket) -> None:
        connection.sendall(b"d\n")
        hold(connection)

    with receiving(tmp_path, Server(close, reset, go_on)) as receiver:
        wait_until(lambda: len(lines(tmp_path)) == 4)
        assert receiver.error is None
    assert lines(tmp_path) == [b"a", b"b", b"c", b"d"]


def test_stopping_is_quick_and_a_restart_goes_on_behind_it(tmp_path: Path) -> None:
    """The journal keeps received lines; the next run appends to it."""
    for word in (b"first", b"second"):

        def serve(connection: socket.socket, word: bytes = word) -> None:
            connection.sendall(word + b"\n")
            hold(connection)

        with receiving(tmp_path, Server(serve)):
            wait_until(lambda word=word: word in lines(tmp_path))  # type: ignore[misc]
            start = time.monotonic()
        assert time.monotonic() - start < 5
    assert lines(tmp_path) == [b"first", b"second"]


def test_no_server_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the stream, the host and the port, and the journal is released."""
    server = Server()
    server.close()
    with pytest.raises(
        ExternalSystemError, match=rf"'readings': nothing answers at 127\.0\.0\.1:{server.port} .*refused"
    ):
        receiving(tmp_path, server).__enter__()
    JournalWriter(tmp_path).close()


def test_a_journal_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gets the error, and no line counts as received."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"a\n")
        hold(connection)

    monkeypatch.setattr("penstock.sources.journal._write_all", full)
    with receiving(tmp_path, Server(serve), bounded=True) as receiver:
        wait_until(lambda: receiver.error is not None)
        with pytest.raises(CheckpointError, match="No space left"):
            receiver.wait_for_end(threading.Event())
    assert lines(tmp_path) == []


def test_a_line_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends its line cannot exhaust the memory."""
    monkeypatch.setattr("penstock.sources.socket._LONGEST_LINE_BYTES", 1000)

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"x" * 1200)
        wait_until(lambda: bool(lines(tmp_path)))
        connection.sendall(b"x" * 1800 + b"\nnext\n")

    with receiving(tmp_path, Server(serve), bounded=True) as receiver:
        receiver.wait_for_end(threading.Event())
    found = lines(tmp_path)
    assert b"".join(found[:-1]) == b"x" * 3000
    assert found[-1] == b"next"
    assert len(found) > 2
