"""Addresses at which a job listens, and who can reach them."""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import Final, NamedTuple

from penstock.errors import JobDefinitionError

__all__ = ["Address", "is_loopback", "metrics_address"]

_LOCAL_NAME: Final = "localhost"


class Address(NamedTuple):
    """An address to listen at: a host name or an IP address, and a port, with 0 for a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def metrics_address(text: str, *, allow_remote: bool) -> Address:
    """Parse an address, HOST:PORT or [IPv6]:PORT.

    Raises JobDefinitionError when the text is not an address, or when others could reach it and that is not allowed.
    """
    try:
        parts = urllib.parse.urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or "@" in text or "/" in text:
        raise JobDefinitionError(
            f"{text!r} is not an address for metrics. Write HOST:PORT, for example 127.0.0.1:9464."
        )
    address = Address(host, port)
    if not address.is_loopback and not allow_remote:
        raise JobDefinitionError(
            f"Metrics would be served at {address} to everyone who can reach this machine. Use 127.0.0.1, or add "
            "--metrics-allow-remote."
        )
    return address


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address is a loopback address, which other machines cannot reach.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host.lower() == _LOCAL_NAME or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
