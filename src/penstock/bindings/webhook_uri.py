"""URIs of webhooks: the address to which records are sent by HTTP, and how."""

from __future__ import annotations

import re
from typing import Final

from penstock.bindings.event_parts import events_of
from penstock.bindings.secrets import redact
from penstock.bindings.types import WebhookBinding
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority

__all__ = ["parse_webhook"]

_MAX_AT_ONCE: Final = 64
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS: Final = ("content-type", "content-length", "host", "idempotency-key", "transfer-encoding")


def parse_webhook(uri: UriParts) -> WebhookBinding:
    """Return the server that a URI names. Raises ValueError, which says what is wrong."""
    authority, _, path = split_authority(uri.rest)
    if "@" in authority:
        raise ValueError("a login goes into a header: header.Authorization=env:NAME")
    host = (
        authority
        if re.search(r":[0-9]+$", authority)
        else f"{authority}:{443 if uri.scheme == 'https' else 80}"
    )
    parse_server(host)
    if "#" in path or any(ord(character) <= 32 for character in path):
        raise ValueError("in paths write # as %23 and a space as %20")
    known = uri.known()
    headers, query = uri.request_parts("header."), uri.request_parts("query.")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not value.isprintable():
            raise ValueError(f"header.{name} is not a header")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"the header {name} is set by penstock")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("a header is given twice; upper and lower case are the same")
    events = events_of(known, uri.role)
    if events is not None and events.is_binary:
        own = [name for name in headers if name.lower().startswith("ce-")]
        if own:
            raise ValueError(f"header.{own[0]} is an attribute of an event; use attributes=")
        if known.get("records_per_request", 1) > 1:
            raise ValueError(
                f"records_per_request={known['records_per_request']}, but with event_mode=binary a request is one event"
            )
    if known.get("requests_at_once", 1) > _MAX_AT_ONCE:
        raise ValueError(f"requests_at_once={known['requests_at_once']} must be at most {_MAX_AT_ONCE}")
    numbers = ("records_per_request", "requests_at_once", "timeout_s", "retry_s")
    return WebhookBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        url=f"{uri.scheme}:{uri.rest}",
        headers=headers,
        query=query,
        format=known.get("format", "json"),
        events=events,
        origin=uri.switch("origin"),
        **{name: known[name] for name in numbers if name in known},
    )
