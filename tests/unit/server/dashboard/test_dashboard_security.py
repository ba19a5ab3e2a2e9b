"""The dashboard's access control: who gets a page, a file or the socket, and from which origin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nicegui
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from rest_support import HOST, TOKENS, RestPlace

from penstock.server.api.access import Role
from penstock.server.api.app import create_app
from penstock.server.api.guard import COOKIE, SOCKET_PATH
from penstock.server.api.routes import DeclaringMount, UndeclaredRouteError, check_declared
from penstock.server.dashboard.mount import DashboardMount, check_pages, dashboard_lifespan

STATIC = f"/dashboard/_nicegui/{nicegui.__version__}/static"


class DashboardPlace(RestPlace):
    """The app with its dashboard."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.mount = DashboardMount(self.context)
        self.client.__exit__()
        self.serve(create_app(self.context, [self.mount], dashboard_lifespan))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DashboardPlace]:
    made = DashboardPlace(tmp_path)
    yield made
    made.close()


def one_of(path: str, job_id: str) -> str:
    return path.replace("{job_id}", job_id)


def test_each_page_is_for_its_role_and_those_above(place: DashboardPlace) -> None:
    """All pages, methods and roles are tested; pages are read-only."""
    job_id = place.submit()
    roles = place.mount.page_roles()
    assert len(roles) >= 7
    for path, needed in roles.items():
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for role in (None, *Role) if method == "GET" else (None, Role.ADMIN):
                answer = place.ask(method, one_of(path, job_id), role)
                if role is None:
                    expected = 401
                elif method not in ("GET", "HEAD"):
                    expected = 405
                else:
                    expected = 200 if role.covers(needed) else 403
                    # Rendering a page for HEAD alone would be wasted work.
                    if method == "HEAD" and expected == 200:
                        expected = 405
                assert answer.status_code == expected, (method, path, role, answer.text[:200])


def test_nobody_unknown_gets_a_file(place: DashboardPlace) -> None:
    """Nor a page; a browser is redirected to the login."""
    for path in (f"{STATIC}/nicegui.js", "/dashboard/assets/dashboard.css", "/dashboard/jobs", "/"):
        assert place.ask("GET", path, None).status_code == 401, path
        assert place.ask("GET", path, Role.VIEWER).status_code in (200, 303), path
        browser = place.ask("GET", path, None, {"Accept": "text/html"})
        assert (browser.status_code, browser.headers["Location"]) == (303, "/login")


@pytest.mark.parametrize(
    "path",
    ["/none", "/jobs/none/none", "/_nicegui/client/x/upload/1", "/_nicegui/0.0/static/nicegui.js", "/favicon.ico",
     f"/_nicegui/{nicegui.__version__}/dynamic_resources/x", f"/_nicegui/{nicegui.__version__}/libraries/x",
     "/_nicegui_ws/socket.io", "/_nicegui_ws/other"],
)  # fmt: skip
def test_there_is_nothing_else(place: DashboardPlace, path: str) -> None:
    """Other paths do not exist, whatever the framework offers."""
    assert place.ask("GET", f"/dashboard{path}").status_code == 404


def test_the_socket_is_no_page(place: DashboardPlace) -> None:
    """HTTP polling in place of a socket is refused."""
    for query in ("", "?transport=polling&EIO=4"):
        assert place.ask("GET", SOCKET_PATH + query).status_code == 404
        assert place.ask("POST", SOCKET_PATH + query).status_code == 405


def opened(place: DashboardPlace, headers: list[tuple[bytes, bytes]], path: str = SOCKET_PATH) -> str:
    """Return the outcome of opening a socket."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"} if not sent else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "scheme": "ws", "subprotocols": [],
        "query_string": b"transport=websocket&EIO=4&client_id=x&implicit_handshake=true", "headers": headers,
        "state": {}, "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(place.app(scope, receive, send))  # type: ignore[arg-type]
    return str(sent[0]["type"])


def test_sockets_of_other_pages_are_refused(place: DashboardPlace) -> None:
    """Checked are host, origin and session; only the socket's own path is valid."""
    cookie = place.ask("GET", f"/login?token={TOKENS[Role.VIEWER]}", None).cookies[COOKIE]
    known = (b"cookie", f"{COOKIE}={cookie}".encode())
    host, own = (b"host", HOST.encode()), (b"origin", f"http://{HOST}".encode())
    with place.client.websocket_connect(
        f"ws://{HOST}{SOCKET_PATH}?transport=websocket&EIO=4",
        headers={"Origin": f"http://{HOST}", "Cookie": f"{COOKIE}={cookie}", "Upgrade": "websocket"},
    ) as socket:
        assert socket.receive_text().startswith("0{")
    for headers in (
        [host, own],
        [host, known],
        [own, known],
        [host, own, (b"cookie", f"{COOKIE}=x".encode())],
        *(
            [(b"host", other), own, known]
            for other in (b"example.org", b"0.0.0.0:8081", b"localhost.example.org")
        ),
        *(
            [host, (b"origin", other), known]
            for other in (b"null", b"http://example.org", b"https://127.0.0.1:8081")
        ),
        [host, own, known, (b"sec-fetch-site", b"cross-site")],
        [host, (b"authorization", b"Bearer x"), own],
    ):
        assert opened(place, headers) == "websocket.close", headers
    for path in ("/dashboard/_nicegui_ws/other", "/dashboard/jobs", "/v1/jobs"):
        assert opened(place, [host, own, known], path) == "websocket.close"


def test_pages_have_the_tightest_policy(place: DashboardPlace) -> None:
    """Each script of a page has the nonce of its response, which is unique."""
    nonces = set()
    for _ in range(2):
        answer = place.ask("GET", "/dashboard/jobs")
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self' 'nonce-")
        found = re.search(r"'nonce-([^']+)'", policy)
        assert found is not None
        nonces.add(found[1])
        scripts = re.findall(r"<script\b[^>]*>", answer.text)
        assert len(scripts) >= 6
        assert all(f'nonce="{found[1]}"' in script or "/dashboard/assets/" in script for script in scripts)
        assert "unsafe-inline" not in policy.partition("style-src")[0]
        assert answer.headers["Cache-Control"] == "no-store"
    assert len(nonces) == 2
    asset = place.ask("GET", f"{STATIC}/nicegui.js")
    assert asset.headers["Content-Security-Policy"].startswith("default-src 'none'; frame")
    assert asset.headers["Cache-Control"] == "private, max-age=86400"


def test_what_a_proxy_says_is_not_believed(place: DashboardPlace) -> None:
    """A prefix forged by a client appears in no page."""
    answer = place.ask("GET", "/dashboard/jobs", headers={"X-Forwarded-Prefix": "/canary-77"})
    assert "canary-77" not in answer.text


def test_text_of_users_is_no_markup(place: DashboardPlace) -> None:
    """A job's name is escaped."""
    job_id = place.submit(name="</script><script>alert(1)</script> {{ 7 * 7 }} ${x} `y`")
    answer = place.ask("GET", f"/dashboard/jobs/{job_id}")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def test_a_job_that_there_is_not_is_said(place: DashboardPlace) -> None:
    """The error has the id."""
    assert "none-77" in place.ask("GET", "/dashboard/jobs/none-77").text


def test_a_page_without_a_role_does_not_start() -> None:
    """Neither does a mount without roles for its pages."""
    app = FastAPI(openapi_url=None)
    app.router.routes.append(APIRoute("/x", lambda: None))
    with pytest.raises(UndeclaredRouteError, match="/x does not declare a role"):
        check_pages(app.routes)
    app.mount("/other", FastAPI())
    with pytest.raises(UndeclaredRouteError):
        check_declared(app.routes)
    assert not isinstance(app.routes[-1], DeclaringMount)


def test_the_login_page_takes_a_token(place: DashboardPlace) -> None:
    """It is posted in a form, so that no URL has it; a wrong one is refused on the same page, which has no
    script.
    """
    page = place.ask("GET", "/login", None)
    assert page.status_code == 200
    assert "script" not in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    own = {"Origin": f"http://{HOST}"}
    wrong = place.ask("POST", "/login", None, own, data={"token": "wrong"})
    assert wrong.status_code == 403
    assert "This token is unknown" in wrong.text
    right = place.ask("POST", "/login", None, own, data={"token": f" {TOKENS[Role.VIEWER]} "})
    assert (right.status_code, right.headers["Location"]) == (303, "/dashboard/jobs")
    assert "HttpOnly" in right.headers["Set-Cookie"]
    other = place.ask(
        "POST", "/login", None, {"Origin": "http://example.org"}, data={"token": TOKENS[Role.VIEWER]}
    )
    assert other.status_code == 403
    assert "Set-Cookie" not in other.headers
