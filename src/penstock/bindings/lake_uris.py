"""URIs of lakes: a table of Iceberg by its name, its catalog, and where its files are."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from penstock.bindings.lake_types import IcebergBinding, LakeReading, PartitionRule
from penstock.bindings.secrets import redact
from penstock.bindings.storage_parameters import BUCKET_SCHEMES
from penstock.bindings.uri_parts import UriParts

__all__ = ["S3_VARIABLES", "check_s3_settings", "lake_reading", "parse_iceberg"]

S3_VARIABLES: Final = {
    "endpoint": "AWS_ENDPOINT_URL_S3",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
"""The parameters of S3, and the environment variables in whose place they stand."""
_LOGINS: Final = ("password", "credential", "token")
_READING: Final = ("start", "changed", "max_files_per_batch", "max_bytes_per_batch")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_RULE: Final = re.compile(
    r"(?:(year|month|day|hour)\(([A-Za-z_]\w*)\)|(bucket|truncate)\(([1-9][0-9]{0,8}),([A-Za-z_]\w*)\)|([A-Za-z_]\w*))"
)
_DATABASE: Final = "postgresql"


def parse_iceberg(uri: UriParts) -> IcebergBinding:
    """Return the table that a URI names. Raises ValueError, which says what is wrong."""
    names = [urllib.parse.unquote(name) for name in uri.rest.split(".")]
    if len(names) < 2 or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError("it needs the name of a table, iceberg:NAMESPACE.TABLE")
    known = uri.known()
    catalog = _catalog(known.get("catalog", ""))
    is_rest = catalog.startswith("http")
    warehouse = known.get("warehouse")
    if not is_rest and (warehouse is not None or uri.role == "sink"):
        warehouse = _warehouse(warehouse)
    for name, allowed in (
        ("password", catalog.startswith(_DATABASE)),
        ("credential", is_rest),
        ("token", is_rest),
    ):
        if name in known and not allowed:
            raise ValueError(f"{name} has no meaning for this catalog")
    check_s3_settings(known)
    return IcebergBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        namespace=tuple(names[:-1]),
        table=names[-1],
        catalog=catalog,
        catalog_name=known.get("catalog_name", "default"),
        warehouse=warehouse,
        login={name: known[name] for name in _LOGINS if name in known},
        client={variable: known[name] for name, variable in S3_VARIABLES.items() if name in known},
        partition_by=_rules(known.get("partition_by")),
        create_table=uri.role == "sink" and known.get("create_table", "true") == "true",
        reading=lake_reading(known),
        upsert_by=known.get("upsert_by", ()),
    )


def lake_reading(known: Mapping[str, Any]) -> LakeReading:
    """Return how a source reads a table."""
    return LakeReading(**{name: known[name] for name in _READING if name in known})


def check_s3_settings(known: dict[str, str]) -> None:
    """Raise ValueError when parameters of S3 do not belong together."""
    if ("access_key_id" in known) != ("secret_access_key" in known):
        raise ValueError("access_key_id and secret_access_key belong together; give both, or neither")
    if "session_token" in known and "access_key_id" not in known:
        raise ValueError("session_token belongs to access_key_id and secret_access_key; give these too")
    if not re.match(r"https?://", known.get("endpoint", "https://")):
        raise ValueError(f"endpoint={known['endpoint']!r} must be an address like https://HOST:PORT")


def _catalog(text: str) -> str:
    """Return the address of a catalog as pyiceberg takes it."""
    if text.startswith("/"):
        return f"sqlite:///{text}"
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in (_DATABASE, "http", "https") or not parts.hostname:
        raise ValueError(
            "it needs catalog=/PATH (a file of SQLite), catalog=postgresql://USER@HOST:PORT/DATABASE or "
            "catalog=https://HOST (REST)"
        )
    if parts.password is not None or (parts.username is not None and parts.scheme != _DATABASE):
        raise ValueError(
            "the address of a catalog has no password; give it by reference (password=, credential= or token=env:NAME)"
        )
    return text.replace(_DATABASE, f"{_DATABASE}+psycopg", 1) if parts.scheme == _DATABASE else text


def _warehouse(text: str | None) -> str:
    """Return where the tables of a catalog in a database are."""
    if text is not None and text.startswith("/"):
        if re.search(r"[?#%]", text):
            raise ValueError(f"warehouse={text!r} cannot contain '?', '#' or '%'")
        return f"file://{text.rstrip('/')}"
    if text is None or text.partition("://")[0] not in BUCKET_SCHEMES:
        raise ValueError("it needs warehouse=/DIR or warehouse=s3://BUCKET/PREFIX, where the tables are")
    return text.rstrip("/")


def _rules(text: str | None) -> tuple[PartitionRule, ...]:
    """Return the rules that split the files."""
    if text is None:
        return ()
    found = []
    for part in re.split(r",(?![^(]*\))", text):
        match = _RULE.fullmatch(part)
        if match is None:
            raise ValueError(
                f"partition_by={text!r} must name fields, or year(FIELD), month(FIELD), day(FIELD), hour(FIELD), "
                "bucket(N,FIELD) and truncate(N,FIELD)"
            )
        period, of_period, cut, number, of_cut, plain = match.groups()
        if plain:
            found.append(PartitionRule(plain))
        else:
            found.append(
                PartitionRule(of_period, period) if period else PartitionRule(of_cut, f"{cut}[{number}]")
            )
    if len({rule.field for rule in found}) < len(found):
        raise ValueError(f"partition_by={text!r} must name each field once")
    return tuple(found)
