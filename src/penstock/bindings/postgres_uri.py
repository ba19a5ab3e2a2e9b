"""URIs of PostgreSQL: a table of a database, and how to connect to it."""

from __future__ import annotations

import urllib.parse
from typing import Final

from penstock.bindings.parameter import SOURCE_ROLES
from penstock.bindings.secrets import redact
from penstock.bindings.types import PostgresBinding
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority, split_login

__all__ = ["parse_postgres"]

_MAX_NAME_BYTES: Final = 63
_TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey")
_SETTINGS: Final = (
    "poll_by",
    "poll_s",
    "poll_delay_s",
    "max_records_per_poll",
    "start",
    "cache_s",
    "cache_rows",
    "retry_s",
)


def parse_postgres(uri: UriParts) -> PostgresBinding:
    """Return the table that a URI names. Raises ValueError, which says what is wrong."""
    if uri.rest.count("@") > 1:
        raise ValueError("in users, passwords and names write @ as %40, / as %2F, : as %3A and ? as %3F")
    authority, _, path = split_authority(uri.rest)
    if not authority.rpartition("@")[0].partition(":")[0]:
        raise ValueError("it needs USER@ before the host")
    user, password, server = split_login(authority)
    host, port = parse_server(server)
    names = path.split("/")
    if len(names) != 2 or not all(names):
        raise ValueError("it needs /DATABASE/TABLE after the port")
    database, place = names
    schema, dot, table = place.rpartition(".")
    found = [urllib.parse.unquote(name) for name in (database, schema if dot else "public", table)]
    if not all(name and len(name.encode()) <= _MAX_NAME_BYTES and "\0" not in name for name in found):
        raise ValueError(f"names of databases, schemas and tables have 1 to {_MAX_NAME_BYTES} bytes")
    known = uri.known()
    if uri.role in SOURCE_ROLES and "poll_by" not in known:
        raise ValueError(
            "it needs poll_by=COLUMN, a column whose values grow: the rows are read in its order"
        )
    if password and "password" in known:
        raise ValueError("the password is given twice; leave out the one before the host")
    if not known.get("sslrootcert", "/").startswith("/") and known["sslrootcert"] != "system":
        raise ValueError(f"sslrootcert={known['sslrootcert']!r} must be an absolute path, or system")
    for name in _TLS_FILES[1:]:
        if not known.get(name, "/").startswith("/"):
            raise ValueError(f"{name}={known[name]!r} must be an absolute path")
    client = {"user": user, **({"password": password} if password else {})}
    client |= {name: known[name] for name in ("password", "sslmode", *_TLS_FILES) if name in known}
    return PostgresBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        host=host.strip("[]"),
        port=port,
        database=found[0],
        schema=found[1],
        table=found[2],
        client=client,
        upsert_by=known.get("upsert_by", ()),
        create_table=known.get("create_table") == "true",
        **{name: known[name] for name in _SETTINGS if name in known},
    )
