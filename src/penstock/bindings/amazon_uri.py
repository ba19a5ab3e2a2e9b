"""URIs of Kinesis and DynamoDB: a stream or a table, its endpoint and its credentials."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from penstock.bindings.amazon_types import POLL_MS, AmazonPlace, DynamoBinding, KinesisBinding
from penstock.bindings.secrets import redact
from penstock.bindings.types import JOURNAL_BYTES
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority

__all__ = ["parse_dynamodb", "parse_kinesis"]

_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_TEMPLATE: Final = re.compile(r"(?:[^{}]|\{[^{}]+\})+")
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")
_LOGIN: Final = ("access_key_id", "secret_access_key", "session_token")
_REFERENCE: Final = ("env:", "file:")
# Kinesis answers five requests a second for each shard.
_LEAST_POLL_MS: Final = 200


def parse_kinesis(uri: UriParts) -> KinesisBinding:
    """Return the stream that a URI names. Raises ValueError, which says what is wrong."""
    name = _name(uri, _STREAM, "a stream")
    known = uri.known()
    poll_ms = known.get("poll_ms", POLL_MS)
    if poll_ms < _LEAST_POLL_MS:
        raise ValueError(
            f"poll_ms={poll_ms} must be at least {_LEAST_POLL_MS}: a shard takes five requests a second"
        )
    template = known.get("partition_key")
    if template is not None and not _TEMPLATE.fullmatch(template):
        raise ValueError(
            f"partition_key={template!r} must have the name of a field in each pair of braces, such as {{sensor}}"
        )
    form = known.get("format", "json")
    origin = known.get("origin") == "true"
    if origin and form != "json":
        raise ValueError(f"origin=true adds a field to JSON, so it does not go with format={form}")
    return KinesisBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        name=name,
        place=_place(known),
        format=form,
        start=_start(known.get("start"), "earliest" if uri.role == "control" else "latest"),
        missing=known.get("missing", "fail"),
        poll_ms=poll_ms,
        max_journal_bytes=known.get("max_journal_bytes", JOURNAL_BYTES),
        partition_key=template,
        order=known.get("order", "key"),
        origin=origin,
    )


def parse_dynamodb(uri: UriParts) -> DynamoBinding:
    """Return the table that a URI names. Raises ValueError, which says what is wrong."""
    table = _name(uri, _TABLE, "a table")
    known = uri.known()
    return DynamoBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        table=table,
        place=_place(known),
        deletions=known.get("deletions", "remove"),
        requests_at_once=known.get("requests_at_once", 8),
    )


def _name(uri: UriParts, pattern: re.Pattern[str], what: str) -> str:
    name, slash, path = split_authority(uri.rest)
    if "@" in name:
        raise ValueError(f"keys do not stand before {what}; they come from the environment, or by reference")
    if not pattern.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of {what} (letters, digits, '.', '_' and '-')")
    if slash:
        raise ValueError(f"the name of {what} has no /, but there is {path!r} after it")
    return name


def _start(text: str | None, default: Literal["earliest", "latest"]) -> Literal["earliest", "latest"] | int:
    if text is None:
        return default
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"start={text!r} must be earliest, latest, or a time like 2026-01-31T08:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise ValueError(f"start={text!r} must say its time zone, such as Z for UTC")
    return int(at.timestamp() * 1000)


def _place(known: Mapping[str, Any]) -> AmazonPlace:
    if ("access_key_id" in known) != ("secret_access_key" in known):
        raise ValueError("access_key_id and secret_access_key belong together; give both, or neither")
    if "session_token" in known and "access_key_id" not in known:
        raise ValueError("session_token belongs to access_key_id and secret_access_key; give these too")
    for name in ("secret_access_key", "session_token"):
        if not known.get(name, "env:").startswith(_REFERENCE):
            raise ValueError(f"{name} is a secret; give it as env:NAME or file:PATH")
    region = known.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise ValueError(f"region={region!r} is not a region, such as eu-central-1")
    endpoint = re.fullmatch(r"https?://([^/?#\s]+)/?", known.get("endpoint", "https://a"))
    if endpoint is not None and "@" in endpoint[1]:
        raise ValueError(
            "the endpoint has a login before its host; give access_key_id and secret_access_key instead"
        )
    if endpoint is None or not _is_server(endpoint[1]):
        raise ValueError(f"endpoint={known['endpoint']!r} must be an address like https://HOST:PORT")
    return AmazonPlace(region, known.get("endpoint"), {name: known[name] for name in _LOGIN if name in known})


def _is_server(text: str) -> bool:
    """Return whether a text is HOST or HOST:PORT."""
    try:
        parse_server(text if re.search(r":[0-9]+$", text) else f"{text}:443")
    except ValueError:
        return False
    return True
