"""Mount: NiceGUI behind the guard, limited to its pages, files and socket."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import secrets
import urllib.parse
from collections.abc import AsyncIterator, Iterable, MutableMapping
from pathlib import Path
from typing import Any, Final

import nicegui
from fastapi import FastAPI
from jinja2 import BaseLoader, Environment
from nicegui import Client, core
from nicegui import client as nicegui_client
from socketio.exceptions import ConnectionRefusedError as SocketRefused
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from penstock.server.api.access import Role
from penstock.server.api.context import Context
from penstock.server.api.guard import DASHBOARD, SOCKET_PATH, cookies_in, headers_of
from penstock.server.api.problems import problem
from penstock.server.api.routes import ROLE_FIELD, DeclaringMount, UndeclaredRouteError
from penstock.server.dashboard import pages
from penstock.server.dashboard.page_session import Readings, end_page, principal_of

__all__ = ["DashboardMount", "check_pages", "dashboard_lifespan"]

_log: Final = logging.getLogger(__name__)
_ASSETS: Final = Path(__file__).parent / "assets"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INTERNAL: Final = f"/_nicegui/{nicegui.__version__}/"
_FILES: Final = re.compile(
    rf"{re.escape(_INTERNAL)}(?:static|libraries|components|resources|esm)/[A-Za-z0-9_./-]+"
)
_CACHED: Final = b"private, max-age=86400"
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
_EVENTS: Final = ("handshake", "event", "javascript_response", "ack")
_MAX_SAID: Final = 300
_configured = False


class DashboardMount(DeclaringMount):
    """The dashboard as one route of the app, with its pages and their roles."""

    def __init__(self, context: Context) -> None:
        _configure()
        self._context: Final = context
        self._readings: Final = Readings()
        self._assets: Final = {
            f"/assets/{path.name}": (path.read_bytes(), _TYPES[path.suffix]) for path in _ASSETS.iterdir()
        }
        self._pages: Final = [
            (route, role) for route in nicegui.app.routes if (role := _declared_role(route)) is not None
        ]
        super().__init__(DASHBOARD, app=self._answer)

    def page_roles(self) -> dict[str, Role]:
        """Return the roles that the pages require, by full path."""
        return {f"{DASHBOARD}{getattr(route, 'path', '')}": role for route, role in self._pages}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(DASHBOARD)
        inner = {**scope, "state": {**scope["state"], "context": self._context, "readings": self._readings}}
        # Any client can forge proxy headers.
        inner["headers"] = [pair for pair in scope["headers"] if not pair[0].startswith(b"x-forwarded")]
        if scope["type"] == "websocket":
            if scope["path"] == SOCKET_PATH:
                await nicegui.app(inner, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        response = self._refusal(inner, path)
        if response is None and path in self._assets:
            content, kind = self._assets[path]
            response = Response(content, media_type=kind, headers={"Cache-Control": _CACHED.decode()})
        if response is not None:
            await response(scope, receive, send)
            return
        inner["state"]["nonce"] = nonce = secrets.token_urlsafe(16)
        is_file = _FILES.fullmatch(path) is not None

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {b"cache-control": _CACHED if is_file else b"no-store"}
                if not is_file:
                    own[b"content-security-policy"] = _POLICY.format(nonce=nonce).encode()
                kept = [pair for pair in message["headers"] if pair[0].lower() not in own]
                message["headers"] = [*kept, *own.items()]
            await send(message)

        await nicegui.app(inner, receive, send_with_headers)

    def _refusal(self, scope: Scope, path: str) -> Response | None:
        """Return the refusal of a request without the role for a page, or for no known page or file; None otherwise."""
        if scope["method"] not in ("GET", "HEAD"):
            return problem(405, "method-not-allowed", "Pages are read-only.", headers={"Allow": "GET, HEAD"})
        if path in self._assets or _FILES.fullmatch(path):
            return None
        for route, role in self._pages:
            if route.matches(scope)[0] is not Match.NONE:
                principal = scope["state"]["principal"]
                if not principal.role.covers(role):
                    return problem(
                        403,
                        "forbidden",
                        f"This needs the role {role}, and {principal.name} has the role {principal.role}.",
                    )
                return None
        return problem(404, "not-found", "No such page exists.")


@contextlib.asynccontextmanager
async def dashboard_lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run the lifespan of NiceGUI while the server runs."""
    async with nicegui.app.router.lifespan_context(nicegui.app):
        yield


def _declared_role(route: BaseRoute) -> Role | None:
    declared = (getattr(route, "openapi_extra", None) or {}).get(ROLE_FIELD)
    return None if declared is None else Role(declared)


def _configure() -> None:
    """Configure NiceGUI once per process. Raises UndeclaredRouteError for a page without a role."""
    global _configured  # NiceGUI, too, exists once per process
    if _configured:
        return
    nicegui.app.config.add_run_config(
        reload=False,
        title="penstock",
        viewport="width=device-width, initial-scale=1",
        favicon=(_ASSETS / "mark.svg").read_text(),
        dark=None,
        language="en-US",
        binding_refresh_interval=None,
        reconnect_timeout=5.0,
        message_history_length=200,
        tailwind=False,
        unocss=None,
        prod_js=True,
        show_welcome_message=False,
        markdown=False,
    )
    # Long polling would bypass the guard after its first request.
    nicegui.app.config.socket_io_js_transports = ["websocket"]
    core.sio.eio.transports = ["websocket"]
    environment = nicegui_client.templates.env
    assert environment.loader is not None
    environment.loader = _WithNonces(environment.loader)
    logging.getLogger("nicegui").addFilter(_without_messages)
    _guard_sockets()
    pages.install()
    check_pages(nicegui.app.routes)
    _configured = True


def check_pages(routes: Iterable[BaseRoute]) -> None:
    """Check that each route declares a role or belongs to the framework. Raises UndeclaredRouteError if not."""
    for route in routes:
        path = getattr(route, "path", "")
        if _declared_role(route) is None and not path.startswith(("/_nicegui/", "/_nicegui_ws")):
            raise UndeclaredRouteError(f"The page {path} does not declare a role.")


class _WithNonces(BaseLoader):
    """A loader of templates that adds the nonce of the response to their scripts, so that no other script runs."""

    def __init__(self, loader: BaseLoader) -> None:
        self._loader: Final = loader

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:
        source, name, is_fresh = self._loader.get_source(environment, template)
        return re.sub(r"<script\b", '<script nonce="{{ request.state.nonce }}"', source), name, is_fresh


def _without_messages(record: logging.LogRecord) -> bool:
    """Keep the place of an error in a log record, but not its text, which may contain a secret."""
    if record.exc_info and record.exc_info[0] is not None:
        kind, _, trace = record.exc_info
        last = trace
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = "" if last is None else f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})"
        record.msg, record.args, record.exc_info = f"A bug in penstock, {kind.__name__}{where}", (), None
        record.exc_text = None
    return True


def _guard_sockets() -> None:
    """Restrict a socket to the pages of its own session, and only while the session lasts."""
    sio = core.sio
    known = sio.handlers["/"]
    connect = known["connect"]

    async def guarded_connect(sid: str, environ: MutableMapping[str, Any], auth: Any = None) -> None:
        asked = urllib.parse.parse_qs(environ.get("QUERY_STRING", "")).get("client_id", [""])
        page = Client.instances.get(asked[0])
        if page is not None and not _has_session_of(sid, page):
            raise SocketRefused("The session has ended.")
        await connect(sid, environ, auth)

    def guard(event: str) -> Any:
        handle = known[event]

        async def answer(sid: str, said: Any = None, *_: Any) -> Any:
            if not _is_own(sid, said):
                return False
            try:
                result = handle(sid, said)
                return await result if inspect.isawaitable(result) else result
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                _log.warning("A browser sent an unreadable message of type %s (%s).", event, type(e).__name__)
                return False

        return answer

    def log_message(sid: str, said: Any = None, *_: Any) -> None:
        if _is_own(sid, said):
            _log.warning("A browser logged: %r", str(said.get("message"))[:_MAX_SAID])

    sio.on("connect", guarded_connect)
    for event in _EVENTS:
        sio.on(event, guard(event))
    sio.on("log", log_message)


def _is_own(sid: str, said: Any) -> bool:
    """Return whether a message of a socket is about a page of its own session."""
    page = Client.instances.get(str(said.get("client_id"))) if isinstance(said, dict) else None
    return page is not None and _has_session_of(sid, page)


def _has_session_of(sid: str, page: Client) -> bool:
    """Return whether a socket has the session of a page. Ends the page if its session has ended."""
    socket = core.sio.get_environ(sid)["asgi.scope"]
    if _session_keys(socket) != _session_keys(page.request.scope):
        return False
    if principal_of(socket) is None:
        end_page(page)
        return False
    return True


def _session_keys(scope: Scope) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the cookies and credentials that identify a session."""
    headers = headers_of(scope)
    return cookies_in(headers), headers.get("authorization", [])
