"""URIs of HTTP receivers: the address at which a job listens for requests with records."""

from __future__ import annotations

import urllib.parse
from typing import Final

from penstock.bindings.event_parts import events_of
from penstock.bindings.secrets import redact
from penstock.bindings.types import HttpListenBinding
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority

__all__ = ["parse_http_listen"]

_FILES: Final = ("certfile", "keyfile")
_LEAST_JOURNAL_BYTES: Final = 512 << 20
_LARGEST_REQUEST_BYTES: Final = 256 << 20


def parse_http_listen(uri: UriParts) -> HttpListenBinding:
    """Return the address at which a job listens. Raises ValueError, which says what is wrong."""
    authority, slash, path = split_authority(uri.rest)
    if "@" in authority:
        raise ValueError("a login is a token: token=env:NAME")
    host, port = parse_server(authority)
    known = uri.known()
    for name in _FILES:
        if name in known and not known[name].startswith("/"):
            raise ValueError(f"{name}={known[name]!r} must be an absolute path")
    if len([name for name in _FILES if name in known]) == 1:
        raise ValueError("TLS needs both certfile=PATH and keyfile=PATH")
    if known.get("max_journal_bytes", _LEAST_JOURNAL_BYTES) < _LEAST_JOURNAL_BYTES:
        raise ValueError(
            f"max_journal_bytes={known['max_journal_bytes']} must be at least {_LEAST_JOURNAL_BYTES}, since the "
            "newest segments stay when they have been read"
        )
    if known.get("max_request_bytes", 1) > _LARGEST_REQUEST_BYTES:
        raise ValueError(
            f"max_request_bytes={known['max_request_bytes']} must be at most {_LARGEST_REQUEST_BYTES}"
        )
    numbers = ("max_request_bytes", "max_journal_bytes")
    return HttpListenBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        host=host.strip("[]"),
        port=port,
        path=slash + urllib.parse.unquote(path) or "/",
        login={"token": known["token"]} if "token" in known else {},
        format=known.get("format", "json"),
        events=events_of(known, uri.role),
        **{name: known[name] for name in (*_FILES, *numbers) if name in known},
    )
