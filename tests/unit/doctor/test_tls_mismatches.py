"""A TLS client at a port without TLS, and vice versa: each binding reports the mismatch, and soon."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.tls_ports import speaks_tls, tls_advice
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import WebhookBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import ExternalSystemError
from penstock.stores import redis_clients
from penstock.webhooks.webhook_requests import Sender

SECURE = [
    "rediss://127.0.0.1:{}/0/{{id}}",
    "amqps://u:p@127.0.0.1:{}/%2F/{{id}}",
    "mqtts://127.0.0.1:{}/t",
    "opensearch://127.0.0.1:{}/i?id={{id}}&tls=true",
    "cassandra://127.0.0.1:{}/k/t?tls=true&datacenter=d",
    "https://127.0.0.1:{}/t",
]
PLAIN = [
    "redis://127.0.0.1:{}/0/{{id}}",
    "amqp://u:p@127.0.0.1:{}/%2F/{{id}}",
    "mqtt://127.0.0.1:{}/t",
    "opensearch://127.0.0.1:{}/i?id={{id}}",
    "cassandra://127.0.0.1:{}/k/t?datacenter=d",
]


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server, and yield its port."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def hang_up(connection: socket.socket) -> None:
    connection.recv(4096)


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return a port that speaks TLS, and nothing more."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not there")
    folder = tmp_path_factory.mktemp("certificates")
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-subj", "/CN=h"]
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", *new_key, "-nodes", *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(folder, "cert.pem"), Path(folder, "key.pem"))

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as encrypted:
            stay_silent(encrypted)

    with serving(answer) as port:
        yield port


@pytest.mark.parametrize("uri", SECURE)
def test_tls_at_a_port_without_it_is_told(uri: str) -> None:
    with serving(hang_up) as port:
        found = check_binding("x", parse_binding("x", uri.format(port), "sink"), is_source=False)
    assert found.status == "failed"
    assert "othing that speaks TLS answers at " in f"{found.found} {found.remedy}"


@pytest.mark.parametrize("uri", PLAIN)
def test_a_port_with_tls_is_told_to_a_client_without_it(uri: str, tls_port: int) -> None:
    found = check_binding("x", parse_binding("x", uri.format(tls_port), "sink"), is_source=False)
    assert found.status == "failed"
    assert found.remedy.endswith("That port speaks TLS: correct the port, or ask for TLS in the URI.")


def test_a_server_that_waits_for_more_is_told_before_the_client_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis takes the handshake for the start of a command, and its client would wait for 60 s."""
    monkeypatch.setattr(redis_clients, "_CONNECT_S", 0.3)
    with serving(stay_silent) as port:
        begun_s = time.monotonic()
        found = check_binding(
            "x", parse_binding("x", f"rediss://127.0.0.1:{port}/0/{{id}}", "sink"), is_source=False
        )
    assert time.monotonic() - begun_s < 20
    assert "nothing that speaks TLS answers at 127.0.0.1" in found.found


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_webhook_does_not_wait_for_what_cannot_change(scheme: str, tls_port: int) -> None:
    """It waits up to `retry_s` only for a server that is down."""

    def answer_plainly(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(answer_plainly) as plain_port:
        port = tls_port if scheme == "http" else plain_port
        binding = parse_binding("x", f"{scheme}://127.0.0.1:{port}/t", "sink")
        assert isinstance(binding, WebhookBinding)
        with pytest.raises(ExternalSystemError, match=r"That port speaks TLS|The port does not speak TLS"):
            Sender(binding, sleep=lambda _: pytest.fail("it waits")).send(b"{}", None)


def test_a_server_that_refuses_a_client_in_the_words_of_tls_speaks_it() -> None:
    """It may require another version, or a certificate."""

    def refuse(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28")

    with serving(refuse) as port:
        assert speaks_tls("127.0.0.1", port)
        assert tls_advice("127.0.0.1", port, is_secure=True) == ""
