"""Access: who a request comes from, what each role may do, which addresses, hosts and origins are allowed. All pure."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import Fault, PenstockError
from penstock.metrics.addresses import is_loopback

__all__ = [
    "AccessError",
    "Grant",
    "Principal",
    "Role",
    "Sessions",
    "TokenBook",
    "bind_address",
    "check_bind",
    "grants_of",
    "hash_of",
    "host_of",
    "is_plain_path",
    "new_token",
    "origin_problem",
]

_TOKEN_BYTES: Final = 32
_MIN_TOKEN: Final = 32
_HASHED: Final = "sha256:"
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
# Events by a user with one of these names would look like events by the server.
_OWN_NAMES: Final = frozenset({"autoscaler", "manager", "owner"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_LARGEST_PORT: Final = 65535
# Each path has only one spelling: no escapes, no `..`, no empty parts.
_PATH: Final = re.compile(rb"/|(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}){1,12}")
_PORTS: Final = {"http": 80, "https": 443}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class AccessError(PenstockError):
    """Settings that would expose the server, or leave unclear whom it admits."""

    fault: ClassVar[Fault] = "user"


class Role(enum.StrEnum):
    """What a user may do: read, control jobs, or everything. Each role includes the previous ones."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Return whether this role includes the needed one.

        >>> Role.ADMIN.covers(Role.OPERATOR), Role.VIEWER.covers(Role.OPERATOR)
        (True, False)
        """
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Principal:
    """An authenticated user: the name shown in events, and the role."""

    name: str
    role: Role


@dataclass(frozen=True)
class Grant:
    """A token, stored only as a hash, and its owner."""

    principal: Principal
    hash: str


def new_token() -> str:
    """Return a new token that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_of(token: str) -> str:
    """Return the hash of a token. Tokens are long and random, so a plain hash cannot be reversed.

    >>> hash_of("a" * 32)[:15]
    'sha256:3ba3f5f4'
    """
    return _HASHED + hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def grants_of(lines: Iterable[str], place: str) -> list[Grant]:
    """Parse the grants in lines `NAME ROLE TOKEN`, where TOKEN may be `sha256:` followed by the token's hash.

    `place` names the origin of the lines in errors, which never show their content. Raises AccessError.
    """
    grants: list[Grant] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        problem = _problem_of(words)
        if problem:
            raise AccessError(
                f"Line {number} of {place} {problem}. Write NAME ROLE TOKEN, as penstock token prints it."
            )
        name, role, token = words
        found = token if token.startswith(_HASHED) else hash_of(token)
        if any(hmac.compare_digest(grant.hash, found) for grant in grants):
            raise AccessError(f"Line {number} of {place} has the same token as another line. Remove one.")
        grants.append(Grant(Principal(name, Role(role)), found))
    return grants


def _problem_of(words: list[str]) -> str | None:
    if len(words) != 3:
        return f"has {len(words)} words"
    name, role, token = words
    if not _NAME.fullmatch(name):
        return "does not begin with a name (letters, digits and . _ @ -)"
    if name in _OWN_NAMES:
        return f"has the name {name}, which is reserved for the server itself"
    if role not in list(Role):
        return f"has an unknown role (the roles are {', '.join(Role)})"
    if token.startswith(_HASHED):
        return None if _HASH.fullmatch(token) else "has an invalid hash"
    return None if len(token) >= _MIN_TOKEN else f"has a token of fewer than {_MIN_TOKEN} characters"


class TokenBook:
    """The accepted tokens."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants: Final = tuple(grants)

    def find(self, token: str) -> Principal | None:
        """Return the owner of a token; None if unknown.

        Compares all tokens, each in constant time, so that timing reveals nothing.
        """
        wanted = hash_of(token)
        found = None
        for grant in self._grants:
            if hmac.compare_digest(grant.hash, wanted):
                found = grant.principal
        return found


class Sessions:
    """The logged-in browsers, by the hash of their cookie. They are lost when the server ends.

    Args:
        lasts_s: how long a cookie is valid.
        limit: the largest number of sessions; a new one replaces the oldest.

    """

    def __init__(self, lasts_s: float = 12 * 3600.0, limit: int = 1000) -> None:
        self.lasts_s: Final = lasts_s
        self._limit: Final = limit
        self._known: dict[str, tuple[Principal, float]] = {}

    def begin(self, principal: Principal, now_s: float) -> str:
        """Begin a session for a user, and return its cookie."""
        cookie = new_token()
        while len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)))
        self._known[hash_of(cookie)] = (principal, now_s + self.lasts_s)
        return cookie

    def find(self, cookie: str, now_s: float) -> Principal | None:
        """Return the owner of a cookie; None if it is unknown or expired."""
        # Looked up by its hash, which no client can choose, so timing reveals nothing about the cookie.
        found = self._known.get(hash_of(cookie))
        return found[0] if found is not None and now_s < found[1] else None

    def end(self, cookie: str) -> None:
        """Forget a cookie."""
        self._known.pop(hash_of(cookie), None)


def bind_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` into host and port. Raises AccessError.

    >>> bind_address("127.0.0.1:8081")
    ('127.0.0.1', 8081)
    >>> bind_address("[::1]:0")
    ('::1', 0)
    """
    found = _HOST.fullmatch(text)
    if found is None or found["port"] is None or int(found["port"]) > _LARGEST_PORT:
        raise AccessError(f"--bind {text!r} is not an address. Write HOST:PORT, for example 127.0.0.1:8081.")
    return found["name"].strip("[]"), int(found["port"])


def check_bind(host: str, *, tls: bool, tokens: bool, insecure: bool) -> None:
    """Raise AccessError if other machines could reach an unprotected server, unless the user allows it (`insecure`)."""
    if is_loopback(host) or insecure or (tls and tokens):
        return
    missing = " and ".join(
        text
        for text, there in (("tokens (--tokens)", tokens), ("TLS (--tls-cert, --tls-key)", tls))
        if not there
    )
    raise AccessError(
        f"Other machines can reach {host}, and the server has no {missing}. Add what is missing, bind to 127.0.0.1, or "
        "pass --insecure-bind if a proxy in front of the server protects it."
    )


def host_of(values: list[bytes], allowed: frozenset[str]) -> str | None:
    """Return the Host header if there is exactly one and its name is allowed, else None.

    This stops DNS rebinding: a foreign page whose name resolves to this machine sends that name as the Host.

    >>> host_of([b"localhost:8081"], frozenset({"localhost"}))
    'localhost:8081'
    """
    if len(values) != 1:
        return None
    try:
        text = values[0].decode("ascii")
    except UnicodeDecodeError:
        return None
    found = _HOST.fullmatch(text)
    if found is None or (found["port"] is not None and int(found["port"]) > _LARGEST_PORT):
        return None
    return text if found["name"].lower() in allowed else None


def is_plain_path(raw: bytes) -> bool:
    """Return whether a path has a form that routes can have. Others are refused before any other processing.

    >>> is_plain_path(b"/v1/jobs/rooms-1f"), is_plain_path(b"/v1/jobs/..%2f"), is_plain_path(b"//v1")
    (True, False, False)
    """
    return _PATH.fullmatch(raw) is not None


def origin_problem(
    method: str, headers: Mapping[str, list[str]], origin: str, *, cookie: bool, websocket: bool = False
) -> str | None:
    """Return why a request may come from a page of another site; None if it does not.

    Args:
        method: the method of the request.
        headers: its headers, by lower-case name.
        origin: the server's own origin as the request names it: scheme and host.
        cookie: whether a cookie identifies the user. Browsers send cookies on behalf of any page.
        websocket: whether the request opens a WebSocket, which browsers allow any page to do.

    """
    unsafe = method not in _SAFE_METHODS or websocket
    sites = headers.get("sec-fetch-site", [])
    origins = headers.get("origin", [])
    if len(sites) > 1 or len(origins) > 1:
        return "It has a repeated Origin or Sec-Fetch-Site header."
    if sites and sites[0] not in {"same-origin", "none"}:
        navigates = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == [
            "document"
        ]
        if unsafe or not navigates:
            return f"It comes from a page of another site (Sec-Fetch-Site: {sites[0]})."
    if origins and unsafe and not _same_origin(origins[0], origin):
        return "Its Origin is not this server."
    if unsafe and cookie and not origins and (websocket or not sites):
        return (
            "It has a cookie, and no header says which page sent it. Programs must use Authorization: Bearer."
        )
    return None


def _same_origin(one: str, other: str) -> bool:
    return _parts(one) is not None and _parts(one) == _parts(other)


def _parts(origin: str) -> tuple[str, str, int] | None:
    """Parse an origin into scheme, host and port; None if it cannot be the origin of a page of this server."""
    scheme, mark, place = origin.partition("://")
    found = _HOST.fullmatch(place)
    if not mark or found is None or scheme not in _PORTS:
        return None
    return scheme, found["name"].lower(), int(found["port"] or _PORTS[scheme])
