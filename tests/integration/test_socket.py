"""Lines of a socket reach the job through the journal, once, also over a restart."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from integration_support import read_lines

import penstock as ps
from penstock.errors import ExternalSystemError


def lines_job() -> ps.Job:
    """Return a job that counts lines of text by content."""
    job = ps.Job("lines")
    lines = job.data_stream("lines", schema="text STRING NOT NULL")
    lines.key_by("text").process("count", Counter(), output="text STRING, seen BIGINT").sink_to("counts")
    return job


class Counter(ps.ProcessFunction):
    """Counts how often a line was seen."""

    seen = ps.ValueState(int)

    def process_record(self, line: Any, ctx: ps.Context) -> list[Any]:
        self.seen.set((self.seen.get() or 0) + 1)
        return [Seen(line.text, self.seen.get() or 0)]


class Seen:
    """A line and its count so far."""

    def __init__(self, text: str, seen: int) -> None:
        self.text = text
        self.seen = seen


def serve_once(data: bytes) -> tuple[int, threading.Thread]:
    """Start a server that sends data to the first client and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return server.getsockname()[1], thread


def test_lines_of_a_socket_come_once_also_over_a_restart(run_job: Any, tmp_path: Path) -> None:
    """A bounded run ends with the connection; the next run continues after the journaled lines."""
    for data in (b"a\nb\na\nlast", b"a\n\xc3\xa4\n"):
        port, thread = serve_once(data)
        run_job(lines_job(), {"lines": f"socket://127.0.0.1:{port}", "counts": f"jsonl:{tmp_path}/counts"})
        thread.join()
    found = sorted((r["text"], r["seen"]) for r in read_lines(tmp_path / "counts"))
    assert found == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("last", 1), ("ä", 1)]


def test_no_server_is_a_clear_error(run_job: Any, tmp_path: Path) -> None:
    """Without a server the run ends with a message that names the stream and the address."""
    # Workers import this module, and have only the modules of its own folder.
    from penstock.machine.local_server import free_port

    port = free_port()
    with pytest.raises(ExternalSystemError, match=f"'lines': nothing answers at 127.0.0.1:{port}"):
        run_job(lines_job(), {"lines": f"socket://127.0.0.1:{port}", "counts": f"jsonl:{tmp_path}/counts"})
