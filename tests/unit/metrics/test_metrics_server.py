"""The metrics server: on which addresses it may listen, and what it answers."""

from __future__ import annotations

import http.client
import socket

import pytest

from penstock.errors import ExternalSystemError, JobDefinitionError
from penstock.metrics.addresses import Address, metrics_address
from penstock.metrics.metrics_server import MetricsServer


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9464", "127.0.0.1", 9464), ("localhost:0", "localhost", 0), ("[::1]:80", "::1", 80)],
)
def test_this_machine_may_listen(text: str, host: str, port: int) -> None:
    """Loopback addresses are allowed."""
    assert metrics_address(text, allow_remote=False) == Address(host, port)


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "[::]:9464", "10.1.2.3:9464", "metrics.example:9464"])
def test_others_may_not_listen_unless_that_is_allowed(text: str) -> None:
    """The message says how to allow it."""
    with pytest.raises(JobDefinitionError, match=r"everyone .* --metrics-allow-remote"):
        metrics_address(text, allow_remote=False)
    assert str(metrics_address(text, allow_remote=True)) == text


NO_ADDRESSES = [
    "",
    "9464",
    ":9464",
    "localhost",
    "localhost:",
    "localhost:x",
    "localhost:70000",
    "a@localhost:1",
]


@pytest.mark.parametrize("text", [*NO_ADDRESSES, "[::1", "localhost:1/x"])
def test_what_is_no_address(text: str) -> None:
    """The error shows the right form."""
    with pytest.raises(JobDefinitionError, match="HOST:PORT"):
        metrics_address(text, allow_remote=True)


def answer(url: str, path: str, host: str | None = None) -> tuple[int, str, bytes]:
    """Status, content type and body of an answer."""
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    return response.status, response.headers["Content-Type"], response.read()


def test_it_serves_metrics_and_nothing_else() -> None:
    """Metrics are current at each request; the port is free afterwards."""
    found = [b""]
    with MetricsServer(Address("127.0.0.1", 0), lambda: found[0]) as server:
        url = server.url
        found[0] = b"penstock_running 1\n"
        status, kind, body = answer(url, "/metrics?x=1")
        assert (status, body) == (200, b"penstock_running 1\n")
        assert kind.startswith("text/plain; version=0.0.4")
        for path in ("/", "/metrics/x", "/favicon.ico", "/metrics#x", "/..%2fmetrics"):
            assert answer(url, path)[0] == 404
    with pytest.raises(ConnectionError):
        answer(url, "/metrics")


def test_a_page_under_another_name_gets_nothing() -> None:
    """A browser lured to this machine sends the lure's host name."""
    with MetricsServer(Address("127.0.0.1", 0), lambda: b"x 1\n") as server:
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        for host in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "", "[::1"):
            assert answer(server.url, "/metrics", host)[0] == 403
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]"):
            assert answer(server.url, "/metrics", host)[0] == 200


def test_a_taken_port_is_told() -> None:
    """The error is a sentence, before the job starts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ExternalSystemError, match=rf"127\.0\.0\.1:{port} \(.*in use\).*--metrics-bind"),
            MetricsServer(Address("127.0.0.1", port), lambda: b""),
        ):
            pass
