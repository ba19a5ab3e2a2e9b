"""URIs of stores that keep the value with the greatest version: tables of Cassandra, documents of OpenSearch."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from penstock.bindings.secrets import redact
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority, split_login
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding

__all__ = ["parse_cassandra", "parse_opensearch"]

_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,48}")
_TEMPLATE: Final = re.compile(r"(?:[^{}]|\{[^{}]+\})+")
_FILES: Final = ("cafile", "certfile", "keyfile")
_NUMBERS: Final = ("ttl_s", "writes_at_once", "retry_s")
_MAX_TTL_S: Final = 20 * 365 * 86_400


def parse_cassandra(uri: UriParts) -> CassandraBinding:
    """Return the table that a URI names. Raises ValueError, which says what is wrong."""
    authority, _, path = split_authority(uri.rest)
    user, password, servers = split_login(authority)
    names = [urllib.parse.unquote(part) for part in path.split("/")]
    if len(names) != 2 or not all(map(_NAME.fullmatch, names)):
        raise ValueError("it needs /KEYSPACE/TABLE after the port, names of letters, digits and '_'")
    known = uri.known()
    if known.get("ttl_s", 1) > _MAX_TTL_S:
        raise ValueError(f"ttl_s={known['ttl_s']} must be at most {_MAX_TTL_S}, 20 years")
    return CassandraBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        servers=tuple((host.strip("[]"), port) for host, port in map(parse_server, servers.split(","))),
        keyspace=names[0],
        table=names[1],
        consistency=known.get("consistency", "local_quorum"),
        datacenter=known.get("datacenter"),
        **{name: known[name] for name in _NUMBERS if name in known},
        **_access(known, user, password),
    )


def parse_opensearch(uri: UriParts) -> OpenSearchBinding:
    """Return the documents that a URI names. Raises ValueError, which says what is wrong."""
    authority, _, path = split_authority(uri.rest)
    user, password, server = split_login(authority)
    host, port = parse_server(server)
    known = uri.known()
    index = urllib.parse.unquote(path)
    if not index or "/" in index:
        raise ValueError("it needs /INDEX after the port, such as /readings-{room}")
    if "id" not in known:
        raise ValueError("it needs id=TEMPLATE, the id of a document, such as id={sensor}")
    for name, template in (("index", index), ("id", known["id"])):
        if not _TEMPLATE.fullmatch(template):
            raise ValueError(f"the {name} {template!r} must have the name of a field in each pair of braces")
    return OpenSearchBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        host=host.strip("[]"),
        port=port,
        index=index,
        id=known["id"],
        **{name: known[name] for name in ("retry_s",) if name in known},
        **_access(known, user, password),
    )


def _access(known: Mapping[str, Any], user: str, password: str) -> dict[str, Any]:
    """Return what a client needs to log in and to encrypt."""
    if password and "password" in known:
        raise ValueError("the password is given twice; leave out the one before the host")
    files = {name: known[name] for name in _FILES if name in known}
    for name, path in files.items():
        if not path.startswith("/"):
            raise ValueError(f"{name}={path!r} must be an absolute path")
    if files and known.get("tls") == "false":
        raise ValueError(f"{next(iter(files))} has no meaning with tls=false")
    secret = known.get("password", password)
    if bool(secret) != bool(user):
        raise ValueError("a login needs a user before the host, and a password, best as password=env:NAME")
    return {
        "user": user or None,
        "login": {"password": secret} if secret else {},
        "secure": bool(files) or known.get("tls") == "true",
        **files,
    }
