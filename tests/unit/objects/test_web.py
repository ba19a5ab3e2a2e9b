"""Web addresses: one answer is read, no redirect is followed, and internal addresses are not reached by name."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from answering_server import Answer, answering

from penstock.objects import web
from penstock.objects.web import WebError, is_reachable, read_web

MAX_BYTES = 1000


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def with_body(body: bytes) -> Answer:
    return lambda it, _: it.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def with_head(head: str) -> Answer:
    return lambda it, _: it.sendall(f"HTTP/1.1 {head}\r\nContent-Length: 6\r\n\r\nsesame".encode())


def refusal(uri: str, timeout_ms: int = 10_000) -> str:
    with pytest.raises(WebError) as caught:
        read_web(uri, MAX_BYTES, timeout_ms=timeout_ms)
    assert "sesame" not in str(caught.value)
    return str(caught.value)


def test_an_answer_is_read_without_credentials() -> None:
    """The request is plain; answers may have a length or not."""
    asked: list[bytes] = []
    with answering(with_body(b"x" * MAX_BYTES), asked) as port:
        assert read_web(f"http://127.0.0.1:{port}/a%20b/c.json", MAX_BYTES) == b"x" * MAX_BYTES
    assert asked[0].startswith(b"GET /a%20b/c.json HTTP/1.1\r\n")
    assert b"uthorization" not in asked[0]
    with answering(lambda it, _: it.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")) as port:
        assert read_web(f"http://127.0.0.1:{port}/a", MAX_BYTES) == b"{}"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(status: str) -> None:
    """A redirect could lead to a machine's credentials, for example."""
    asked: list[bytes] = []
    with answering(with_body(b"{}"), asked) as inner:
        head = f"{status}\r\nLocation: http://127.0.0.1:{inner}/latest/meta-data"
        with answering(with_head(head)) as port:
            assert "redirects elsewhere" in refusal(f"http://127.0.0.1:{port}/a")
    assert asked == []


def test_a_name_that_leads_inside_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowed host name that resolves to this machine, its link, or a credential server gets no connection."""
    asked: list[bytes] = []
    real = socket.getaddrinfo
    with answering(with_body(b"{}"), asked) as port:
        for inner in ("127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1", "0.0.0.0"):

            def led_inside(host: str, *rest: object, inner: str = inner, **more: object) -> object:
                return real(inner if host == "config.example" else host, *rest, **more)  # type: ignore[arg-type]

            monkeypatch.setattr("penstock.objects.web.socket.getaddrinfo", led_inside)
            assert "resolves to an address of the machine itself" in refusal(
                f"http://config.example:{port}/a"
            )
    assert asked == []


INSIDE = [
    *("127.0.0.1", "127.8.9.1", "169.254.169.254", "169.254.170.2", "0.0.0.0"),  # no socket is bound
    *("224.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_inner_addresses_are_only_asked_by_their_numbers(address: str) -> None:
    """These are the machine's, link-local ones, and those of clouds' credential services."""
    assert not is_reachable(address, "config.example")
    if "%" not in address:
        assert is_reachable(address, f"[{address}]" if ":" in address else address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "10.1.2.3", "192.168.1.1", "2606:2800:220:1::1", "fd12::1"]
)
def test_other_addresses_are_asked(address: str) -> None:
    """This includes private networks."""
    assert is_reachable(address, "config.example")
    assert not is_reachable(address, "localhost")


def test_localhost_is_this_machine() -> None:
    """The user has named it explicitly."""
    assert is_reachable("127.0.0.1", "localhost")
    assert is_reachable("::1", "localhost")
    assert not is_reachable("169.254.169.254", "localhost")


ANSWERS: dict[str, tuple[Answer, str]] = {
    "missing": (with_head("404 sesame"), "the object does not exist"),
    "denied": (with_head("403 sesame"), "access is denied (403)"),
    "odd": (with_head("418 sesame"), "answered 418"),
    "busy": (with_head("503 sesame"), "answered 503"),
    "breaks off": (
        lambda it, _: it.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"),
        "closed the connection early",
    ),
    "no HTTP": (lambda it, _: it.sendall(b"sesame\r\n\r\n"), "closed the connection early"),
    "too large": (with_body(bytes(MAX_BYTES + 1)), f"is larger than {MAX_BYTES} bytes"),
    "endless": (lambda it, _: it.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1 << 20)), "is larger than"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_cannot_be_read_says_why(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has no part of the answer."""
    monkeypatch.setattr("penstock.objects.web._RETRY_S", 0.5)
    answer, reason = ANSWERS[kind]
    with answering(answer) as port:
        assert reason in refusal(f"http://127.0.0.1:{port}/a")


def drips(connection: socket.socket, _: bytes) -> None:
    """Send a byte of an answer now and then, for longer than a caller waits for the whole answer."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
    for _ in range(100):
        connection.sendall(b"x")
        time.sleep(0.05)


def test_a_dripping_answer_is_broken_off() -> None:
    """This goes for slow bytes within the content or before it."""

    def drips_before(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for number in range(100):
            connection.sendall(b"X-%d: 1\r\n" % number)
            time.sleep(0.05)

    for answer in (drips, drips_before):
        with answering(answer) as port:
            begun_s = time.monotonic()
            assert "does not answer in time" in refusal(f"http://127.0.0.1:{port}/a", timeout_ms=300)
            assert time.monotonic() - begun_s < 3


def test_a_dripping_answer_is_broken_off_if_the_time_was_over_before_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine that stands still meanwhile, until the timer of the limit has run out."""
    connects = web._connect

    def stands_still(*arguments: Any, **named: Any) -> socket.socket:
        for one in threading.enumerate():
            if isinstance(one, threading.Timer):
                one.join()
        return connects(*arguments, **named)

    monkeypatch.setattr(web, "_connect", stands_still)
    with answering(drips) as port:
        begun_s = time.monotonic()
        assert "does not answer in time" in refusal(f"http://127.0.0.1:{port}/a", timeout_ms=1)
        assert time.monotonic() - begun_s < 3


def test_nobody_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covered are a refused connection, an unknown name, and a server without TLS."""
    monkeypatch.setattr("penstock.objects.web._RETRY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "does not answer: connection refused" in refusal(f"http://127.0.0.1:{port}/a")
    assert "the host name does not exist" in refusal("http://no-such-host.invalid/a")
    with answering(with_body(b"{}")) as port:
        assert "does not speak TLS" in refusal(f"https://127.0.0.1:{port}/a")


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on this machine, and resolves the host itself."""
    asked: list[bytes] = []
    with answering(with_body(b"{}"), asked) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert read_web("http://config.example/a", MAX_BYTES) == b"{}"
    assert asked[0].startswith(b"GET http://config.example/a HTTP/1.1\r\n")


def test_a_blip_is_asked_again() -> None:
    """A server that is busy once does not refuse a command for good."""
    answers = iter([with_head("503 Busy"), with_body(b"{}")])
    with answering(lambda it, request: next(answers)(it, request)) as port:
        assert read_web(f"http://127.0.0.1:{port}/a", MAX_BYTES) == b"{}"
