"""HTTP requests to a server: which are retried, that redirects are not followed, and how errors are raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served_rest import ServedRest

from penstock.client import http
from penstock.client.discovery import Address
from penstock.client.http import RefusedError, Server, ServerFailedError
from penstock.errors import ExternalSystemError

Answer = tuple[int, dict[str, str], bytes] | None


class Scripted:
    """A server that gives a list of answers, None for a dropped connection, and records requests."""

    def __init__(self, answers: list[Answer]) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        left = iter(answers)
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                scripted.requests.append((self.command, self.path, dict(self.headers)))
                answer = next(left)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = answer

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scripted]]:
    monkeypatch.setattr(http, "_PAUSE_S", 0.01)
    made: list[Scripted] = []

    def make(*answers: Answer) -> Scripted:
        made.append(Scripted(list(answers)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ok(body: bytes = b"{}", **headers: str) -> Answer:
    return 200, {"Content-Type": "application/json", **headers}, body


def test_a_change_is_sent_again_with_its_key(scripted: Callable[..., Scripted]) -> None:
    """The key makes the server carry it out once when the connection is lost; another change has another key."""
    place = scripted(None, ok(b'{"id": "op-1"}'), ok())
    with Server(Address(place.url, "t")) as server:
        assert server.change("POST", "/v1/jobs", {"definition": "rooms"}) == {"id": "op-1"}
        server.change("PATCH", "/v1/jobs/rooms", {"desired": "PAUSED"})
    keys = [headers["Idempotency-Key"] for _, _, headers in place.requests]
    assert keys[0] == keys[1]
    assert keys[1] != keys[2]


def test_it_gives_up_in_the_end(scripted: Callable[..., Scripted]) -> None:
    """The error names the server, without the token."""
    place = scripted(None, None, None)
    with Server(Address(place.url, "a-secret")) as server, pytest.raises(ExternalSystemError) as error:
        server.get("/v1/me")
    assert place.url in str(error.value)
    assert "a-secret" not in str(error.value)
    assert len(place.requests) == 3


def test_the_token_follows_no_redirect(scripted: Callable[..., Scripted]) -> None:
    """This goes for redirects to another host and to the same one."""
    thief = scripted(ok())
    place = scripted((307, {"Location": f"{thief.url}/v1/me"}, b""))
    with Server(Address(place.url, "t")) as server, pytest.raises(ServerFailedError, match="not followed"):
        server.get("/v1/me")
    assert thief.requests == []


def test_the_token_goes_through_no_proxy(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name one."""
    proxy, place = scripted(ok()), scripted(ok(b'{"name": "ann"}'))
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    with Server(Address(place.url, "t")) as server:
        assert server.get("/v1/me") == {"name": "ann"}
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ((404, {}, b'{"type": "urn:penstock:problem:unknown-id", "detail": "No."}'), RefusedError, "No."),
        ((422, {}, b'{"type": "x", "detail": "Bad.", "errors": ["body.x: no"]}'), RefusedError, "body.x: no"),
        ((503, {}, b'{"detail": "The store is busy."}'), ExternalSystemError, "busy"),
        ((500, {}, b'{"detail": "Something."}'), ServerFailedError, "See its log"),
        ((200, {}, b"<html>hello</html>"), ServerFailedError, "does not answer like a penstock server"),
        ((502, {}, b"<html>proxy</html>"), ServerFailedError, "502"),
    ],
)
def test_problems_become_errors(
    scripted: Callable[..., Scripted], answer: Answer, kind: type[Exception], told: str
) -> None:
    """They have the server's message."""
    with Server(Address(scripted(answer).url, "t")) as server, pytest.raises(kind, match=told):
        server.get("/v1/me")


def test_a_stream_goes_on_behind_the_last_event(scripted: Callable[..., Scripted]) -> None:
    """After a lost connection no event is missing or doubled."""
    place = scripted(
        ok(b'retry: 2000\n\nid: 4\nevent: event\ndata: {"id": 4}\n\n: still here\n\n'),
        None,
        ok(b'id: 5\nevent: event\ndata: {"id": 5}\n\n'),
    )
    with Server(Address(place.url, "t")) as server:
        found = server.stream("/v1/events/stream", after=3)
        assert [next(found), next(found)] == [{"id": 4}, {"id": 5}]
        found.close()  # type: ignore[attr-defined]
    assert [headers.get("Last-Event-ID") for _, _, headers in place.requests] == [None, "4", "4"]


def test_a_stream_of_nobody_is_not_waited_for(scripted: Callable[..., Scripted]) -> None:
    """A server that has never answered is unlikely to start."""
    place = scripted()
    place.close()
    with (
        Server(Address(place.url, "t")) as server,
        pytest.raises(ExternalSystemError, match="No server answers"),
    ):
        next(server.stream("/v1/events/stream"))


def test_lists_come_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages are fetched; for events too, whose list has no end."""
    monkeypatch.setattr(http, "_PAGE", 3)
    place = ServedRest(tmp_path)
    try:
        made = {place.submit() for _ in range(7)}
        variables = place.environment()
        with Server(Address(place.url, variables["PENSTOCK_TOKEN"])) as server:
            assert {job["id"] for job in server.items("/v1/jobs")} == made
            assert {event["job_id"] for event in server.events()} == made
    finally:
        place.close()
