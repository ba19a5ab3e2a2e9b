"""Guard: in front of all routes, admits a request only if its host, origin, path, size and user are allowed."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.api.access import Principal, Sessions, TokenBook, host_of, is_plain_path, origin_problem
from penstock.server.api.problems import problem

__all__ = [
    "COOKIE",
    "DASHBOARD",
    "LOGIN",
    "PUBLIC_PATHS",
    "SOCKET_PATH",
    "Authenticator",
    "Guard",
    "cookie_in",
    "cookies_in",
    "headers_of",
]

COOKIE: Final = "penstock_session"
"""The prefix of the session cookie's name. The port follows, since browsers send cookies to all ports of a host."""

LOGIN: Final = "/login"
"""The path where browsers log in."""

PUBLIC_PATHS: Final = frozenset({LOGIN, "/v1/health"})
"""Paths that need no user: health check and login."""

DASHBOARD: Final = "/dashboard"
"""The prefix of the dashboard's paths."""

SOCKET_PATH: Final = f"{DASHBOARD}/_nicegui_ws/socket.io/"
"""The WebSocket of the dashboard's pages: the only path that ends in a slash."""

_log: Final = logging.getLogger(__name__)
_BEARER: Final = "bearer "
_LONGEST_PATH: Final = 2048
_LONGEST_QUERY: Final = 8192
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)
_TLS_HEADER: Final = (b"strict-transport-security", b"max-age=31536000")


@dataclass(frozen=True)
class Authenticator:
    """The authentication of users, by token or cookie.

    Args:
        tokens: the known tokens.
        hosts: the names of the server that a request may use, in lower case; IPv6 addresses in brackets.
        tls: whether clients reach the server by https.
        max_body_bytes: the largest allowed request body.
        port: the port of the server, for its cookie name; otherwise servers on one host would share a cookie.
        sessions: the sessions of logged-in browsers.
        clock_s: the clock by which sessions expire.

    """

    tokens: TokenBook
    hosts: frozenset[str]
    tls: bool = False
    max_body_bytes: int = 2 << 20
    port: int = 0
    sessions: Sessions = field(default_factory=Sessions)
    clock_s: Callable[[], float] = time.monotonic

    @property
    def cookie(self) -> str:
        """The name of the session cookie."""
        return f"{COOKIE}_{self.port}" if self.port else COOKIE

    def authenticate(self, headers: dict[str, list[str]]) -> Principal | None:
        """Return the user of a request, by its bearer token, else by its cookie; None if unknown."""
        given = headers.get("authorization", [])
        if given:
            if len(given) != 1 or not given[0].lower().startswith(_BEARER):
                return None
            return self.tokens.find(given[0][len(_BEARER) :].strip())
        cookie = cookie_in(headers, self.cookie)
        return None if cookie is None else self.sessions.find(cookie, self.clock_s())


class Guard:
    """ASGI middleware in front of routing. Routes never see a request that the guard refuses."""

    def __init__(self, app: ASGIApp, door: Authenticator) -> None:
        self._app: Final = app
        self._door: Final = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refusal(scope, receive, self._add_headers(send))
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await self._add_headers(send)(message)

        try:
            await self._app(scope, _Limited(receive, self._door.max_body_bytes), sending)
        except Exception as e:
            # Log where the error occurred, but never its text, which may contain a secret.
            where = "".join(traceback.format_tb(e.__traceback__))
            _log.error(
                "%s %s failed because of a bug in penstock, %s:\n%s",
                scope["method"],
                scope["path"],
                type(e).__name__,
                where,
            )
            if begun:
                raise
            answer = problem(500, "internal", "This is a bug in penstock; see the server's log.")
            await answer(scope, receive, self._add_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, list[str]]) -> Response | None:
        host = host_of([v for n, v in scope["headers"] if n == b"host"], self._door.hosts)
        if host is None:
            return problem(
                421,
                "wrong-host",
                "The Host header is not one of the server's names. Use a name it was started with.",
            )
        raw = scope.get("raw_path") or scope["path"].encode()
        plain = is_plain_path(raw) or raw == SOCKET_PATH.encode()
        if len(raw) > _LONGEST_PATH or not plain or len(scope["query_string"]) > _LONGEST_QUERY:
            return problem(404, "not-found", "This path does not exist.")
        has_token = "authorization" in headers
        foreign = origin_problem(
            scope.get("method", "GET"),
            headers,
            f"{'https' if self._door.tls else 'http'}://{host}",
            cookie=not has_token and cookie_in(headers, self._door.cookie) is not None,
            websocket=scope["type"] == "websocket",
        )
        if foreign is not None:
            return problem(403, "other-origin", f"The request is refused. {foreign}")
        too_large = self._too_large(headers)
        if too_large is not None:
            return too_large
        principal = self._door.authenticate(headers)
        scope.setdefault("state", {})["principal"] = principal
        if principal is None and scope["path"] not in PUBLIC_PATHS:
            if _is_page_load(scope, headers):
                return RedirectResponse(LOGIN, 303)
            return problem(
                401,
                "not-known",
                "The token or cookie is missing or unknown. Open the URL that penstock serve printed, or send "
                "Authorization: Bearer TOKEN.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

    def _too_large(self, headers: dict[str, list[str]]) -> Response | None:
        lengths = headers.get("content-length", [])
        if not lengths:
            return None
        if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            return problem(400, "bad-request", "The Content-Length is not a number.")
        if int(lengths[0]) > self._door.max_body_bytes:
            return problem(413, "too-large", f"A request may have at most {self._door.max_body_bytes} bytes.")
        return None

    def _add_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = (*_HEADERS, _TLS_HEADER) if self._door.tls else _HEADERS
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in own)]
            await send(message)

        return sending


class _Limited:
    """A receiver of a request body up to a limit, which also stops a client that sends more than it announced."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive: Final = receive
        self._most: Final = max_bytes
        self._got = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._got += len(message.get("body", b""))
            if self._got > self._most:
                raise HTTPException(413, f"A request may have at most {self._most} bytes.")
        return message


def cookie_in(headers: dict[str, list[str]], name: str) -> str | None:
    """Return the session cookie with a name; None unless there is exactly one."""
    found = [value for known, value in cookies_in(headers) if known == name]
    return found[0] if len(found) == 1 else None


def cookies_in(headers: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return the names and values of all session cookies, including those of other servers on the host."""
    parts = [part.strip().partition("=") for line in headers.get("cookie", []) for part in line.split(";")]
    return [(name, value) for name, _, value in parts if name.startswith(COOKIE)]


def headers_of(scope: Scope) -> dict[str, list[str]]:
    """Return the headers of a request, by lower-case name."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


def _is_page_load(scope: Scope, headers: dict[str, list[str]]) -> bool:
    """Return whether a browser opens a page of the dashboard, and so should see the login page."""
    of_dashboard = scope["path"] == "/" or scope["path"].startswith(DASHBOARD)
    takes = headers.get("accept", [""])[0]
    return of_dashboard and scope["type"] == "http" and scope["method"] == "GET" and "text/html" in takes
