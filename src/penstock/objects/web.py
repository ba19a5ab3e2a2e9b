"""Web addresses: one answer of a web server, read whole, within bounds of size and time.

No redirect is followed, and no address of the machine itself or of its link is asked unless it was named as such: a
name that is allowed today may lead there tomorrow.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final, cast
from urllib.parse import urlsplit

from penstock.errors import ExternalSystemError

__all__ = ["WebError", "is_reachable", "read_web"]

_PATIENCE_S: Final = 3.0
_RETRY_S: Final = 4.0
_PAUSE_S: Final = 0.3
_CHUNK_BYTES: Final = 64 << 10
_LOCAL: Final = "localhost"
# Where clouds tell a machine its credentials, beside the addresses of the link.
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebError(ExternalSystemError):
    """A web address cannot be read. The message names it and the reason, and nothing of the answer."""


class _TransientError(Exception):
    """What may be otherwise in a moment."""


def read_web(uri: str, most_bytes: int, *, timeout_ms: int = 10_000) -> bytes:
    """What a web server answers at an address of plain form, without credentials.

    Args:
        uri: `http://` or `https://`, without a user, a query, or a fragment.
        most_bytes: the largest answer that is taken.
        timeout_ms: how long one request may take, content included; a host that does not answer takes less. All
            together is at most 5 s longer.

    Raises:
        WebError: there is no such address, the host does not answer, leads elsewhere, or may not be asked.

    """
    host = urlsplit(uri).netloc
    begun_s = time.monotonic()
    while True:
        try:
            return _answer(uri, most_bytes, timeout_ms / 1000)
        except _TransientError as e:
            if time.monotonic() - begun_s + _PAUSE_S > _RETRY_S:
                raise WebError(f"{uri!r} cannot be read: {host} {e}") from None
        except WebError as e:
            raise WebError(f"{uri!r} {e}" if "larger" in str(e) else f"{uri!r} cannot be read: {e}") from None
        time.sleep(_PAUSE_S)


def is_reachable(address: str, named: str) -> bool:
    """Whether an address may be asked that a host `named` in a URI has led to."""
    with contextlib.suppress(ValueError):
        # Who has named it by its number, means it.
        return ipaddress.ip_address(named.strip("[]")) == ipaddress.ip_address(address)
    found = _embedded(ipaddress.ip_address(address.partition("%")[0]))
    if named == _LOCAL:
        return found.is_loopback
    inside = found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    return not (inside or found.is_reserved or found in _METADATA)


def _embedded(address: _Address) -> _Address:
    """The IPv4 address that stands for another, or the address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: the answer is told as it is."""


class _Checked(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Connects to addresses that may be asked, and to the proxies of the environment."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: Final[list[socket.socket]] = []

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server, or a proxy."""
        return self._opened(http.client.HTTPConnection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """The same, encrypted."""
        return self._opened(http.client.HTTPSConnection, request)

    def _opened(self, kind: type[Any], request: urllib.request.Request) -> http.client.HTTPResponse:
        proxied = request.host != urlsplit(request.full_url).netloc or request.has_proxy()

        def connection(host: str, **arguments: Any) -> Any:
            made = kind(host, **arguments)
            made._create_connection = lambda address, timeout, _: _connected(  # noqa: SLF001  # no other way in
                address, timeout, checked=not proxied
            )

            def connect() -> None:
                kind.connect(made)
                self.sockets.append(made.sock)

            made.connect = connect
            return made

        return self.do_open(cast("Any", connection), request)


def _connected(address: tuple[str, int], timeout_s: float, *, checked: bool) -> socket.socket:
    """A connection to the first address of a host that answers; of its addresses each must be allowed."""
    host, port = address
    found = [place[4] for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if checked and not all(is_reachable(str(place[0]), host) for place in found):
        raise WebError(f"{host} leads to an address inside of the machine or its link, which is not asked")
    error: OSError = ConnectionRefusedError()
    for place in found:
        try:
            return socket.create_connection((str(place[0]), port), timeout_s)
        except OSError as e:
            error = e
    raise error


def _answer(uri: str, most_bytes: int, timeout_s: float) -> bytes:
    handler = _Checked()
    opener = urllib.request.build_opener(_NoRedirect(), handler)
    opener.addheaders = [("User-Agent", "penstock")]
    with _ended_after(timeout_s, handler.sockets) as is_over:
        try:
            with opener.open(uri, timeout=_PATIENCE_S) as answer:
                content = _content(answer, most_bytes)
        except Exception as e:
            # What servers send makes http.client raise whatever it likes.
            raise _of_failure(e, is_over=is_over()) from None
        if is_over():
            # What was broken off looks like an end where nobody has said how long it would be.
            raise _of_failure(None, is_over=True)
        return content


def _content(answer: Any, most_bytes: int) -> bytes:
    content = bytearray()
    size = answer.length or 0
    while size <= most_bytes and len(content) <= most_bytes:
        chunk = answer.read1(_CHUNK_BYTES)
        if not chunk:
            if answer.length:
                raise _TransientError("broke the connection")
            return bytes(content)
        content += chunk
    raise WebError(f"is larger than {most_bytes} bytes")


@contextlib.contextmanager
def _ended_after(timeout_s: float, sockets: list[socket.socket]) -> Iterator[Any]:
    """Break off what takes too long: a server that sends a byte now and then is never silent."""
    over = threading.Event()

    def end() -> None:
        over.set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield over.is_set
    finally:
        timer.cancel()


def _of_status(status: int) -> Exception:
    if 300 <= status < 400:
        return WebError(
            f"it leads elsewhere ({status}), which is not followed; name the address that it leads to"
        )
    if status == 404:
        return WebError("there is no such object")
    if status >= 500:
        return _TransientError(f"answered {status}")
    return WebError(f"access is denied ({status})" if status in (401, 403) else f"the host answered {status}")


def _of_failure(error: object, *, is_over: bool) -> Exception:
    if is_over:
        return WebError("the host does not answer in time")
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return _of_status(error.code)
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, WebError | _TransientError):
        return cause
    if isinstance(cause, TimeoutError):
        return _TransientError("does not answer in time")
    if isinstance(cause, ConnectionRefusedError):
        return _TransientError("does not answer: connection refused")
    if isinstance(cause, socket.gaierror):
        return _TransientError("does not answer: there is no host of this name")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return WebError("the certificate of the host is not trusted")
    if isinstance(cause, ssl.SSLError):
        return WebError("the host does not speak TLS; its address may have to begin with http://")
    if isinstance(cause, OSError | http.client.HTTPException):
        return _TransientError("broke the connection")
    return WebError(f"the host answered something unexpected ({type(cause).__name__})")
