"""URIs of Redis: keys of a database, and how to connect to it."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from penstock.bindings.secrets import redact
from penstock.bindings.types import RedisBinding
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority, split_login

__all__ = ["parse_redis"]

_KEY: Final = re.compile(r"(?:[^{}]|\{[^{}]+\})+")
_FILES: Final = ("cafile", "certfile", "keyfile")


def parse_redis(uri: UriParts) -> RedisBinding:
    """Return the keys that a URI names. Raises ValueError, which says what is wrong."""
    authority, _, path = split_authority(uri.rest)
    user, password, server = split_login(authority)
    host, port = parse_server(server)
    database, _, key = path.partition("/")
    if not re.fullmatch(r"[0-9]{1,9}", database) or not key:
        raise ValueError("it needs /DATABASE/KEY after the port, such as /0/sensor:{sensor}")
    key = urllib.parse.unquote(key)
    if not _KEY.fullmatch(key):
        raise ValueError(f"the key {key!r} must have the name of a field in each pair of braces")
    known = uri.known()
    if password and "password" in known:
        raise ValueError("the password is given twice; leave out the one before the host")
    secure = uri.scheme == "rediss"
    for name in _FILES:
        if not known.get(name, "/").startswith("/"):
            raise ValueError(f"{name}={known[name]!r} must be an absolute path")
    secret = known.get("password", password)
    return RedisBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        host=host.strip("[]"),
        port=port,
        database=int(database),
        key=key,
        type=known.get("type", "hash"),
        ttl_s=known.get("ttl_s"),
        user=user or None,
        login={"password": secret} if secret else {},
        secure=secure,
        **{name: known[name] for name in _FILES if name in known},
    )
