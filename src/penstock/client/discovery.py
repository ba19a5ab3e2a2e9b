"""Discovery: which server a command asks, and the token that belongs to it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ExternalSystemError, PenstockError
from penstock.metrics.addresses import is_loopback
from penstock.server.runs.directory import ADDRESS_FILE

__all__ = ["SERVER_VARIABLE", "TOKEN_VARIABLE", "Address", "AddressError", "NoServerError", "find_server"]

SERVER_VARIABLE: Final = "PENSTOCK_SERVER"
"""The variable with the URL of the server."""

TOKEN_VARIABLE: Final = "PENSTOCK_TOKEN"  # noqa: S105  # a name, not a token
"""The variable with the token of that server."""

_PORTS: Final = {"http": 80, "https": 443}


class AddressError(PenstockError):
    """The address of a server is malformed, or using it would give its token away."""

    fault = "user"


class NoServerError(ExternalSystemError):
    """No server can be found."""


@dataclass(frozen=True)
class Address:
    """A server, its token, and the certificates to trust with TLS; None are those of the system."""

    url: str
    token: str = field(repr=False)
    ca: Path | None = None


class _Announced(msgspec.Struct, frozen=True):
    """The announcement of a server for programs of its user."""

    url: str
    token: str


def find_server(named: str | None, home: Path, ca: Path | None, environment: Mapping[str, str]) -> Address:
    """Return the named server, or that of the environment, or else the one that runs in a home.

    A token in the environment belongs to the server that the environment names, if it names one; a token in the home
    belongs to the server there. Raises AddressError, NoServerError.
    """
    announced = _read_announced(home)
    url = named or environment.get(SERVER_VARIABLE) or None
    if url is None:
        if announced is None:
            raise NoServerError(
                f"No server runs in {home}. Start one with penstock serve, or name one with --server, or its home "
                "with --home."
            )
        return Address(announced.url, announced.token, ca)
    origin = _parse_origin(url)
    token = environment.get(TOKEN_VARIABLE)
    if token:
        owner = environment.get(SERVER_VARIABLE)
        if owner and _parse_origin(owner) != origin:
            raise AddressError(
                f"{TOKEN_VARIABLE} is the token of the server that {SERVER_VARIABLE} names, and --server names "
                f"another. Set both variables for {url}."
            )
    elif announced is not None and _parse_origin(announced.url) == origin:
        token = announced.token
    else:
        raise AddressError(f"No token is known for {url}. Set {TOKEN_VARIABLE}; penstock token creates one.")
    if origin[0] == "http" and not is_loopback(origin[1]):
        raise AddressError(f"{url} would send the token in clear text to another machine. Use https://.")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise AddressError(
            f"What is in {TOKEN_VARIABLE} is not a token: it has characters that tokens never have."
        )
    return Address(url.rstrip("/"), token, ca)


def _read_announced(home: Path) -> _Announced | None:
    try:
        return msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=_Announced)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise NoServerError(f"{home / ADDRESS_FILE} cannot be read ({e}). Start the server again.") from None


def _parse_origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises AddressError for anything but the URL of a server."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), 0
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in _PORTS or not parts.hostname or not plain:
        # The message does not repeat it: it may have a token, as the URL for browsers has.
        raise AddressError(
            "The URL of a server is http(s)://HOST:PORT and nothing else, without a path or a token."
        )
    return parts.scheme, parts.hostname, port
