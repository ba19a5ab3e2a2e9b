"""URI parts: functions that the parsers of all kinds of URIs share."""

from __future__ import annotations

import difflib
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.bindings.client_settings import (
    CLIENT_SETTING,
    JAVA_SETTINGS,
    OWN_SETTINGS,
    is_client_setting,
)
from penstock.bindings.parameter import Parameter
from penstock.bindings.parameters import (
    PARAMETERS,
    REQUEST_PREFIXES,
    WEB_SCHEMES,
    parameters_of,
)
from penstock.bindings.secrets import check_reference
from penstock.bindings.types import Role

__all__ = ["ROLE_NAMES", "UriParts", "parse_server", "split_authority", "split_login"]

ROLE_NAMES: Final[dict[Role, str]] = {
    "data": "data stream",
    "control": "control stream",
    "sink": "sink",
    "lookup": "lookup table",
}
"""What a role is called in a sentence."""


@dataclass(frozen=True)
class UriParts:
    """The parts of a URI. Their parsers raise ValueError, which `parse_binding` turns into a BindingError."""

    stream: str
    uri: str
    role: Role
    scheme: str
    rest: str
    query: Sequence[tuple[str, str]]

    def known(self) -> dict[str, Any]:
        """Return the values of penstock's own parameters; refuse others unless they are client settings."""
        parameters = {p.name: p for p in parameters_of(self.scheme, self.role)}
        found: dict[str, Any] = {}
        for name, value in self.query:
            if name in parameters:
                found[name] = parameters[name].parse(value)
            elif self._is_of_request(name):
                check_reference(name, value)
            elif self.scheme != "kafka" or not is_client_setting(name):
                raise ValueError(self._unknown(name, parameters))
        return found

    def switch(self, name: str) -> bool | None:
        """Return whether a parameter is true or false; None if it is left out."""
        value = dict(self.query).get(name)
        return None if value is None else value == "true"

    def _is_of_request(self, name: str) -> bool:
        return self.scheme in WEB_SCHEMES and name.startswith(REQUEST_PREFIXES)

    def request_parts(self, prefix: str) -> dict[str, str]:
        """Return the parameters with a prefix, such as headers of a request, without it."""
        return {name.removeprefix(prefix): value for name, value in self.query if name.startswith(prefix)}

    def client(self) -> dict[str, str]:
        """Return the client settings among the parameters, without the prefix `kafka.`."""
        settings: dict[str, str] = {}
        for name, value in self.query:
            if not is_client_setting(name):
                continue
            bare = name.removeprefix("kafka.")
            if bare in OWN_SETTINGS:
                raise ValueError(f"{bare} is set by penstock; {OWN_SETTINGS[bare]}")
            for java, instead in JAVA_SETTINGS.items():
                if bare.startswith(java):
                    raise ValueError(f"{bare} is a setting of Kafka's Java client; {instead}")
            check_reference(bare, value)
            if bare in settings:
                raise ValueError(f"the client setting {bare} is given twice")
            settings[bare] = value
        return settings

    def _unknown(self, name: str, parameters: Mapping[str, Parameter]) -> str:
        if any(p.name == name and self.scheme in p.schemes for p in PARAMETERS):
            return f"{name} has no meaning for a {ROLE_NAMES[self.role]}"
        near = difflib.get_close_matches(name, parameters, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        if self.scheme == "kafka":
            return f"unknown parameter {name!r}{hint}; use one of those below, or {CLIENT_SETTING}"
        return f"unknown parameter {name!r}{hint}"


def split_authority(rest: str) -> tuple[str, str, str]:
    """Return the part between // and the path, the slash, and the path."""
    if not rest.startswith("//"):
        raise ValueError("it needs // before the host")
    authority, slash, path = rest[2:].partition("/")
    if not authority:
        raise ValueError("the host is missing")
    return authority, slash, path


def split_login(authority: str) -> tuple[str, str, str]:
    """Return the user and the password before the host, empty if there are none, and `HOST:PORT`."""
    login, at, server = authority.rpartition("@")
    if "@" in login:
        raise ValueError("in users and passwords write @ as %40, / as %2F, : as %3A and ? as %3F")
    user, _, password = (urllib.parse.unquote(part) for part in login.partition(":"))
    if at and not user and not password:
        raise ValueError("the user before @ is missing")
    return user, password, server


def parse_server(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})", text.strip())
    if match is None and "@" in text:
        raise ValueError("a login has no place before this HOST:PORT; its parameters are below")
    if match is None:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    port = int(match.group(2))
    if not 1 <= port <= 65535:
        raise ValueError(f"the port {port} is not between 1 and 65535")
    return match.group(1), port
