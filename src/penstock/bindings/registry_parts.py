"""Registry parts: the schema registry that the parameters of a URI name."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from penstock.bindings.types import RegistryBinding, Role

__all__ = ["registry_of"]


def registry_of(known: Mapping[str, Any], role: Role, subject: str | None = None) -> RegistryBinding | None:
    """Return the registry of parameters; None for messages without one.

    `subject` is that of a sink that names none. Raises ValueError when only a part of the parameters is given.
    """
    url = known.get("registry")
    form = known.get("format", "json")
    if form == "avro" and url is None:
        raise ValueError("format=avro needs registry=http://HOST:PORT, the URL of a schema registry")
    if form not in _FORMATS and url is not None:
        raise ValueError(f"format={form} has no schemas; registry is for format={', '.join(_FORMATS)}")
    if url is None:
        given = next((name for name in _NAMES if name in known), None)
        if given is not None:
            raise ValueError(f"{given} needs registry=http://HOST:PORT, the URL of a schema registry")
        return None
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"registry={url!r} is not of the form http://HOST:PORT or https://HOST:PORT/PATH")
    if "@" in parts.netloc:
        raise ValueError("registry= has no login; write registry_user=USER and registry_password=env:NAME")
    user, password = known.get("registry_user"), known.get("registry_password")
    if (user is None) != (password is None):
        raise ValueError("registry_user and registry_password need each other")
    subject = known.get("subject", subject)
    if role == "sink" and subject is None:
        raise ValueError("a sink with registry= needs subject=NAME, for the schema of its records")
    return RegistryBinding(url.rstrip("/"), user, password, subject if role == "sink" else None)


_FORMATS: Final = ("avro", "json", "protobuf")
_NAMES: Final = ("registry_user", "registry_password", "subject")
