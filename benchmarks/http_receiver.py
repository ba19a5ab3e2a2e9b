"""Requests to a job beside a plain server that keeps what it is sent, in turns.

Senders in another process send lines of JSON by connections that stay open, and wait for each answer. The plain server
is uvicorn with the least application that does the same: it checks that each line is JSON, appends the body to a file,
syncs it, and answers 202. penstock has its journal, from which a replay reads the same, instead of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import uvicorn

from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import HttpListenBinding
from penstock.machine.local_server import free_port
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.webhooks.http_receiver import HttpReceiver

READING: Final = record_type("id BIGINT, celsius DOUBLE, room STRING")
_CONNECTIONS: Final = 8
_END: Final = b"\r\n\r\n"


def requests(connection: int, count: int, lines: int) -> list[bytes]:
    """Return the requests of a connection."""
    found = []
    for number in range(count):
        first = (connection * count + number) * lines
        body = b"".join(
            b'{"id": %d, "celsius": %.2f, "room": "room %d"}\n' % (one, 20 + one % 7, one % 100)
            for one in range(first, first + lines)
        )
        head = f"POST /readings HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append(head.encode() + body)
    return found


def send(port: int, count: int, lines: int, ready: Any, done: Any) -> None:
    """Send the requests of all connections at once, between two marks that both processes pass."""

    def one(prepared: list[bytes]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for request in prepared:
                connection.sendall(request)
                answer = b""
                while _END not in answer or len(answer) < len(answer.partition(_END)[0]) + 4 + _length(
                    answer
                ):
                    answer += connection.recv(4096)
                if not answer.startswith(b"HTTP/1.1 202"):
                    raise SystemExit(f"a request was answered with {answer!r}")

    prepared = [requests(connection, count, lines) for connection in range(_CONNECTIONS)]
    ready.wait()
    threads = [threading.Thread(target=one, args=(each,)) for each in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.wait()


def _length(answer: bytes) -> int:
    fields = answer.partition(_END)[0].lower().split(b"\r\n")
    return int(next(field for field in fields if field.startswith(b"content-length:")).partition(b":")[2])


@contextmanager
def penstock_server(port: int, folder: Path) -> Iterator[Callable[[], int]]:
    """Run penstock's receiver, and give what counts the records that it has."""
    binding = parse_binding("readings", f"http-listen://127.0.0.1:{port}/readings", "data")
    assert isinstance(binding, HttpListenBinding)

    def records() -> int:
        log = JournalLog(folder)
        splits = log.splits(0, log.latest(0, limited=False), 1)
        return sum(len(chunk.raw) for chunk in log.read(splits, READING) if chunk.raw is not None)

    with HttpReceiver(binding, folder, JournalWriter(folder)):
        yield records


class _Plain:
    """An application that keeps the lines of requests in a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  # the interface of ASGI
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        records = msgspec.json.Decoder(msgspec.Raw).decode_lines(body)
        await asyncio.to_thread(self._keep, body)
        answer = msgspec.json.encode({"records": len(records)})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _keep(self, body: bytes) -> None:
        self._file.write(body)
        self._file.flush()
        os.fdatasync(self._file.fileno())


@contextmanager
def plain_server(port: int, folder: Path) -> Iterator[Callable[[], int]]:
    """Run the plain server, and give what counts the records that it has."""
    folder.mkdir()
    path = folder / "lines"
    with path.open("wb") as file:
        config = uvicorn.Config(
            _Plain(file),
            host="127.0.0.1",
            port=port,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield lambda: path.read_bytes().count(b"\n")
        finally:
            server.should_exit = True
            thread.join()


_SERVERS: Final[dict[str, Callable[[int, Path], AbstractContextManager[Callable[[], int]]]]] = {
    "penstock": penstock_server,
    "uvicorn": plain_server,
}


def rates_of(name: str, folder: Path, count: int, lines: int) -> tuple[float, float]:
    """Return how many records a server takes in a second, and in one of its processor time."""
    port = free_port()
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(2), context.Barrier(2)
    with _SERVERS[name](port, folder) as records:
        sender = context.Process(target=send, args=(port, count, lines, ready, done))
        sender.start()
        _await_listening(port)
        ready.wait(60)
        begun_s, busy_s = time.perf_counter(), time.process_time()
        done.wait(600)
        took_s, busy_s = time.perf_counter() - begun_s, time.process_time() - busy_s
        sender.join()
        expected = _CONNECTIONS * count * lines
        if records() != expected:
            raise SystemExit(f"{name} has {records()} of {expected} records.")
    return expected / took_s, expected / busy_s


def _await_listening(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def measure(count: int, lines: int, rounds: int) -> dict[str, Any]:
    """Return medians for each: records per second, and per second of processor time, and the ratios of a round."""
    runs: list[dict[str, tuple[float, float]]] = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append({name: rates_of(name, Path(folder, name), count, lines) for name in _SERVERS})
        shown = ", ".join(f"{name} {rate:,.0f}/s" for name, (rate, _) in runs[-1].items())
        note(f"round {number + 1} of {rounds}: {shown}")
    found: dict[str, Any] = {"lines": lines, "records": _CONNECTIONS * count * lines}
    for place, kind in enumerate(("wall", "processor")):
        found[kind] = {name: statistics.median(run[name][place] for run in runs) for name in _SERVERS}
        ratios = [run["penstock"][place] / run["uvicorn"][place] for run in runs]
        found[f"{kind}_ratio"] = statistics.median(ratios)
    return found


def main() -> None:
    """Measure requests of one record, of a hundred and of a thousand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="how many each of 8 connections sends")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results = [measure(options.requests, lines, options.rounds) for lines in (1, 100, 1000)]
    for kind, of in (("wall", "time"), ("processor", "the server's processor time")):
        print_table(
            f"Records per second of {of}",
            ["records in a request", "penstock", "uvicorn", "ratio"],
            [
                [
                    str(one["lines"]),
                    *(f"{rate:,.0f}" for rate in one[kind].values()),
                    f"{one[f'{kind}_ratio']:.2f}",
                ]
                for one in results
            ],
        )
    print_json({"http_receiver": results})


if __name__ == "__main__":
    main()
