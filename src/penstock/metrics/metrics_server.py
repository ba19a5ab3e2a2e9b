"""The metrics server: the metrics of a running job over HTTP, at /metrics."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Final, Self

from penstock.errors import ExternalSystemError
from penstock.metrics.addresses import Address, is_loopback

__all__ = ["MetricsServer"]

_PATH: Final = "/metrics"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_S: Final = 10.0


class MetricsServer:
    """A server of the text that `content` returns, in its own threads; a context manager.

    Entering it raises ExternalSystemError when it cannot listen at the address.
    """

    def __init__(self, address: Address, content: Callable[[], bytes]) -> None:
        self._wanted: Final = address
        self._content: Final = content
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        assert self._server is not None
        address = Address(self._wanted.host, self._server.server_address[1])
        return f"http://{address}{_PATH}"

    def __enter__(self) -> Self:
        # At a loopback address, requests under another host name are refused: a web page may make a browser send them.
        local_only = self._wanted.is_loopback
        handler = type(
            "Handler", (_Handler,), {"content": staticmethod(self._content), "local_only": local_only}
        )
        kind = _Server6 if ":" in self._wanted.host else _Server
        try:
            self._server = kind((self._wanted.host, self._wanted.port), handler)
        except OSError as e:
            raise ExternalSystemError(
                f"Cannot serve metrics at {self._wanted} ({e.strerror or e}). Choose another --metrics-bind."
            ) from e
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    address_family = AF_INET
    daemon_threads = True


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(BaseHTTPRequestHandler):
    """The handler of GET /metrics, which answers nothing else."""

    content: Callable[[], bytes]
    local_only: bool
    timeout = _REQUEST_S
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:  # named by the library
        """Answer a request."""
        if self.local_only and not is_loopback(_host_of(self.headers.get("Host", ""))):
            self.send_error(403, "The metrics are available only on this machine.")
        elif self.path.partition("?")[0] != _PATH:
            self.send_error(404, f"Only {_PATH} exists.")
        else:
            found = self.content()
            self.send_response(200)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # named by the library
        """Do not log requests."""


def _host_of(header: str) -> str:
    """Return the host in the Host header of a request."""
    try:
        return urllib.parse.urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
