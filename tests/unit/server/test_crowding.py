"""Crowds: who is silent, slow or many keeps nobody out, and the server always says that it lives."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from penstock.server.connection_limits import HEALTH, Bounded, CrowdLimits, protocol_for

LIMITS = CrowdLimits(head_s=0.4, body_s=0.4, waiting=20, waiting_of_one=None, working=3)


class Place:
    """A server in a thread, whose route /slow answers when the test says so."""

    def __init__(self, limits: CrowdLimits) -> None:
        self.release = threading.Event()
        self.is_at_work = threading.Event()
        routes = [
            Route(HEALTH, self._answer),
            Route("/a", self._answer, methods=["GET", "POST"]),
            Route("/slow", self._slow),
            WebSocketRoute("/socket", self._socket),
        ]
        config = uvicorn.Config(
            Bounded(Starlette(routes=routes), limits.working),
            http=protocol_for(limits),
            log_level="error",
            port=0,
            timeout_graceful_shutdown=1,
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=[[self._listening]], daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)

    async def _answer(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def _slow(self, request: Request) -> PlainTextResponse:
        self.is_at_work.set()
        while not self.release.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("done")

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.receive_text()

    def connect(self, stack: ExitStack, sent: bytes = b"") -> socket.socket:
        made = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 10))
        made.sendall(sent)
        return made

    def close(self) -> None:
        self.release.set()
        self._server.should_exit = True
        self._thread.join(10)
        self._listening.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(LIMITS)
    yield made
    made.close()


def ended_after_s(connection: socket.socket) -> float:
    """When the server has ended a connection."""
    begun_s = time.monotonic()
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - begun_s


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX-Part",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nxx",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n",
    ],
    ids=["nothing", "a head", "a body", "chunks"],
)
def test_a_request_that_does_not_end_is_ended(place: Place, sent: bytes) -> None:
    """Whatever part of it has come."""
    with ExitStack() as stack:
        assert ended_after_s(place.connect(stack, sent)) < 3


def test_a_request_that_drips_is_ended(place: Place) -> None:
    """Each byte in time is not a request in time."""
    with ExitStack() as stack:
        for head in (b"GET /a HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"):
            connection = place.connect(stack, head)
            begun_s = time.monotonic()
            with suppress(OSError):
                while time.monotonic() - begun_s < 5:
                    connection.sendall(b"x")
                    time.sleep(0.05)
            assert time.monotonic() - begun_s < 3


def test_silent_connections_keep_nobody_out(place: Place) -> None:
    """Many times as many as there is room for: those that wait longest go, and whoever asks is answered."""
    with ExitStack() as stack:
        for _ in range(10):
            for _ in range(LIMITS.waiting):
                place.connect(stack)
            assert httpx.get(f"{place.url}/a", timeout=5).status_code == 200
            assert httpx.get(place.url + HEALTH, timeout=5).status_code == 200


def test_five_hundred_silent_connections_keep_nobody_out() -> None:
    """With the limits of the server."""
    place = Place(CrowdLimits())
    try:
        with ExitStack() as stack:
            for _ in range(520):
                place.connect(stack)
            begun_s = time.monotonic()
            assert httpx.get(f"{place.url}/a", timeout=5).status_code == 200
            assert time.monotonic() - begun_s < CrowdLimits.head_s / 2
    finally:
        place.close()


def test_a_request_at_work_keeps_its_place(place: Place) -> None:
    """It is answered, however long it takes and however many come; so is a socket."""
    with ExitStack() as stack, httpx.Client(base_url=place.url, timeout=10) as client:
        told: list[int] = []
        asking = threading.Thread(target=lambda: told.append(client.get("/slow").status_code))
        asking.start()
        assert place.is_at_work.wait(30)
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        opened = place.connect(stack, b"GET /socket HTTP/1.1\r\nHost: x\r\n" + upgrade + key)
        assert opened.recv(1 << 16).startswith(b"HTTP/1.1 101")
        for _ in range(5 * LIMITS.waiting):
            place.connect(stack)
        time.sleep(2 * (LIMITS.head_s + LIMITS.body_s))
        opened.setblocking(False)
        with pytest.raises(BlockingIOError):
            opened.recv(1)
        place.release.set()
        asking.join(10)
        assert told == [200]


def test_too_many_at_work_are_told_and_probes_are_answered(place: Place) -> None:
    """Liveness is no question of how much there is to do."""
    with ExitStack() as stack:
        for _ in range(LIMITS.working):
            place.connect(stack, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        busy = httpx.get(f"{place.url}/a", timeout=5)
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")
        assert httpx.get(place.url + HEALTH, timeout=5).status_code == 200
        place.release.set()
        time.sleep(0.2)
        assert httpx.get(f"{place.url}/a", timeout=5).status_code == 200


def test_one_address_has_its_share() -> None:
    """Where each client has an address of its own."""
    place = Place(CrowdLimits(head_s=5, waiting=20, waiting_of_one=2))
    try:
        with ExitStack() as stack:
            connections = [place.connect(stack) for _ in range(3)]
            assert ended_after_s(connections[0]) < 3
            assert httpx.get(f"{place.url}/a", timeout=5).status_code == 200
    finally:
        place.close()


def test_a_connection_asks_again_and_again(place: Place) -> None:
    """The times count for each request, not for the connection."""
    with httpx.Client(base_url=place.url, timeout=5) as client:
        for _ in range(4):
            assert client.post("/a", content=b"x" * 100_000).text == "100000"
            time.sleep(LIMITS.head_s)
        with ExitStack() as stack:
            connection = place.connect(stack)
            for _ in range(3):
                connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                # Head and body may come one after the other.
                while not answer.endswith(b"\r\n\r\n0"):
                    answer += (came := connection.recv(1000))
                    assert came, answer
                assert answer.startswith(b"HTTP/1.1 200")
                time.sleep(LIMITS.head_s * 0.9)
