"""Web addresses: one answer of a web server, read whole, within bounds of size and time.

Redirects are not followed. Addresses of the machine itself or of its link (loopback and link-local) are not contacted
unless the URI names them as such: a host name that is allowed today may resolve to one tomorrow.
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
from typing import Any, Final, cast
from urllib.parse import urlsplit

from penstock.errors import ExternalSystemError

__all__ = ["WebError", "is_reachable", "read_web"]

_PATIENCE_S: Final = 3.0
_RETRY_S: Final = 4.0
_PAUSE_S: Final = 0.3
_CHUNK_BYTES: Final = 64 << 10
_LOCAL: Final = "localhost"
# Where clouds serve credentials to a machine, in addition to link-local addresses.
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebError(ExternalSystemError):
    """A web address cannot be read. The message names it and the reason, and quotes nothing of the answer."""


class _TransientError(Exception):
    """A failure that may be over in a moment."""


def read_web(uri: str, max_bytes: int, *, timeout_ms: int = 10_000) -> bytes:
    """Return the answer of a web server at an address of plain form, without credentials.

    Args:
        uri: `http://` or `https://`, without a user, a query, or a fragment.
        max_bytes: the largest answer that is accepted.
        timeout_ms: how long one request may take, content included; a host that does not answer takes less. The whole
            call takes at most 5 s longer.

    Raises:
        WebError: the address does not exist, or the host does not answer, redirects, or may not be contacted.

    """
    host = urlsplit(uri).netloc
    begun_s = time.monotonic()
    while True:
        try:
            return _answer(uri, max_bytes, timeout_ms / 1000)
        except _TransientError as e:
            if time.monotonic() - begun_s + _PAUSE_S > _RETRY_S:
                raise WebError(f"{uri!r} cannot be read: {host} {e}") from None
        except WebError as e:
            raise WebError(f"{uri!r} {e}" if "larger" in str(e) else f"{uri!r} cannot be read: {e}") from None
        time.sleep(_PAUSE_S)


def is_reachable(address: str, named: str) -> bool:
    """Return whether the address that the host `named` in a URI resolved to may be contacted."""
    with contextlib.suppress(ValueError):
        # A host that is named by its number is meant.
        return ipaddress.ip_address(named.strip("[]")) == ipaddress.ip_address(address)
    found = _embedded(ipaddress.ip_address(address.partition("%")[0]))
    if named == _LOCAL:
        return found.is_loopback
    inside = found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    return not (inside or found.is_reserved or found in _METADATA)


def _embedded(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address embeds, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class _TimeLimit:
    """Cuts off an answer that takes too long: a server that sends a byte now and then never times out."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._sockets: Final[list[socket.socket]] = []
        self._lock: Final = threading.Lock()
        self._timer: Final = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def add(self, connection: socket.socket) -> None:
        """Cut off this connection when the time is over, or at once if it is."""
        with self._lock:
            self._sockets.append(connection)
            if self.is_over:
                self._cut_off()

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            self._cut_off()

    def _cut_off(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect itself is the answer."""


class _Checked(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A handler that connects to addresses that may be contacted, and to the proxies of the environment."""

    def __init__(self, limit: _TimeLimit) -> None:
        super().__init__()
        self._limit: Final = limit

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request to a server or a proxy."""
        return self._open_checked(http.client.HTTPConnection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request to a server or a proxy, encrypted."""
        return self._open_checked(http.client.HTTPSConnection, request)

    def _open_checked(self, kind: type[Any], request: urllib.request.Request) -> http.client.HTTPResponse:
        proxied = request.host != urlsplit(request.full_url).netloc or request.has_proxy()

        def connection(host: str, **arguments: Any) -> Any:
            made = kind(host, **arguments)
            made._create_connection = lambda address, timeout, _: _connect(  # noqa: SLF001  # no other way in
                address, timeout, checked=not proxied
            )

            def connect() -> None:
                kind.connect(made)
                self._limit.add(made.sock)

            made.connect = connect
            return made

        return self.do_open(cast("Any", connection), request)


def _connect(address: tuple[str, int], timeout_s: float, *, checked: bool) -> socket.socket:
    """Connect to the first address of a host that answers; each of its addresses must be allowed."""
    host, port = address
    found = [place[4] for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if checked and not all(is_reachable(str(place[0]), host) for place in found):
        raise WebError(
            f"{host} resolves to an address of the machine itself or its link, which is not allowed"
        )
    error: OSError = ConnectionRefusedError()
    for place in found:
        try:
            return socket.create_connection((str(place[0]), port), timeout_s)
        except OSError as e:
            error = e
    raise error


def _answer(uri: str, max_bytes: int, timeout_s: float) -> bytes:
    limit = _TimeLimit(timeout_s)
    opener = urllib.request.build_opener(_NoRedirect(), _Checked(limit))
    opener.addheaders = [("User-Agent", "penstock")]
    with limit:
        try:
            with opener.open(uri, timeout=_PATIENCE_S) as answer:
                content = _content(answer, max_bytes)
        except Exception as e:
            # http.client may raise anything, depending on what the server sends.
            raise _of_failure(e, is_over=limit.is_over) from None
        if limit.is_over:
            # Without a known length, an answer that was cut off looks complete.
            raise _of_failure(None, is_over=True)
        return content


def _content(answer: Any, max_bytes: int) -> bytes:
    content = bytearray()
    size = answer.length or 0
    while size <= max_bytes and len(content) <= max_bytes:
        chunk = answer.read1(_CHUNK_BYTES)
        if not chunk:
            if answer.length:
                raise _TransientError("closed the connection early")
            return bytes(content)
        content += chunk
    raise WebError(f"is larger than {max_bytes} bytes")


def _of_status(status: int) -> Exception:
    if 300 <= status < 400:
        return WebError(
            f"it redirects elsewhere ({status}), which is not followed; name the address that it redirects to"
        )
    if status == 404:
        return WebError("the object does not exist")
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
        return _TransientError("does not answer: the host name does not exist")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return WebError("the certificate of the host is not trusted")
    if isinstance(cause, ssl.SSLError):
        return WebError("the host does not speak TLS; its address may need to begin with http://")
    if isinstance(cause, OSError | http.client.HTTPException):
        return _TransientError("closed the connection early")
    return WebError(f"the host sent an unexpected answer ({type(cause).__name__})")
