"""The security of REST: who may do what, from where, and that no secret gets out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import re
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from rest_support import HOST, TOKENS, RestPlace

from penstock.commands.command_catalog import CONTROL_FILE, read_command_catalog
from penstock.server.api.access import Principal, Role, hash_of
from penstock.server.api.app import describe
from penstock.server.api.guard import COOKIE, PUBLIC_PATHS
from penstock.server.api.routes import (
    PUBLIC,
    ROLE_FIELD,
    UndeclaredRouteError,
    check_declared,
    needs,
    new_router,
)

METHODS = ("get", "put", "post", "delete", "patch", "options", "head", "trace")
CANARY = "canary-5f1d"


def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    """The operations of the API's description: method, path, and what it says of them."""
    paths = describe(app)["paths"]
    return [(m, path, paths[path][m]) for path in paths for m in METHODS if m in paths[path]]


def one_of(path: str) -> str:
    return re.sub(r"{\w+}", "none", path)


def test_each_operation_is_for_its_role_and_those_above(place: RestPlace) -> None:
    """The whole matrix of routes, methods and roles: nobody known 401, a lower role 403, else let in.

    What there is not is tried by nobody known, and by the role that may do all.
    """
    described = {(path, m): operation for m, path, operation in operations(place.app)}
    assert len(described) >= 24
    for path, method, role in itertools.product({path for path, _ in described}, METHODS, [None, *Role]):
        operation = described.get((path, method))
        if operation is None and role not in (None, Role.ADMIN):
            continue
        more = {"params": {"seconds": "1"}} if path.endswith("/stream") else {}
        answer = place.ask(method.upper(), one_of(path), role, **more)
        public = path in PUBLIC_PATHS
        if role is None and not public:
            expected = {401}
        elif operation is None:
            expected = {405}
        elif operation[ROLE_FIELD] == PUBLIC or (role and role.covers(Role(operation[ROLE_FIELD]))):
            # What is asked for is not there, or not said well: but who asks is let in.
            expected = {200, 204, 303, 404, 409, 422}
        else:
            expected = {403}
        assert answer.status_code in expected, (method, path, role, answer.text)


def test_roles_are_as_they_should_be(place: RestPlace) -> None:
    """Who only looks changes nothing; nothing but health and login is for everybody."""
    for method, path, operation in operations(place.app):
        if operation[ROLE_FIELD] == PUBLIC:
            assert path in PUBLIC_PATHS
            assert operation["security"] == []
        elif operation[ROLE_FIELD] == Role.VIEWER:
            assert method == "get" or (method, path) == ("delete", "/v1/session")
    assert {path for _, path, o in operations(place.app) if o[ROLE_FIELD] == PUBLIC} == PUBLIC_PATHS


def test_a_route_without_a_role_does_not_start(place: RestPlace) -> None:
    """Nor does one that is not guarded at all."""
    router = new_router("more")
    with pytest.raises(UndeclaredRouteError, match="/v1/more"):

        @router.get("/more")
        def more() -> None: ...

    app = FastAPI()
    app.get("/other", openapi_extra=needs(Role.ADMIN))(lambda: None)
    with pytest.raises(UndeclaredRouteError, match="does not declare a role"):
        check_declared(app.routes)


def test_the_description_tells_all(place: RestPlace) -> None:
    """Each operation has a summary, a description, and errors that are problem documents."""
    for _, path, operation in operations(place.app):
        assert operation["summary"], path
        assert operation["description"], path
        for status in ("401", "403", "404", "422"):
            assert "application/problem+json" in operation["responses"][status]["content"]
        for parameter in operation.get("parameters", []):
            assert parameter.get("description") or parameter["name"] in {"status", "last-event-id"}, parameter


# What is hostile

PATHS = [
    f"/v1/{root}/{up}{target}"
    for root in ("jobs", "operations", "savepoints")
    for up in (
        "../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "....//", "%252e%252e%252f", "..;/", "%c0%ae%c0%ae/",
        "./", "//", "%00", "~/", ".%00./", "\u2025/", "x/../../",
    )
    for target in ("etc/passwd", "store.db", "server.json")
]  # fmt: skip
PATHS += [
    "//v1/jobs",
    "/v1//jobs",
    "/v1/jobs/",
    "/v1/./jobs",
    "/V1/jobs",
    "/v1/jobs%20",
    "/v1/jobs\x00",
    "/v1/jobs\r\n",
    "*",
]
PATHS += [
    "http://example.org/v1/jobs",
    "/v1/jobs/" + "a" * 200,
    "/v1" * 20 + "/jobs",
    "/v1/j\u00f6bs",
    "",
    "/.env",
    "/.git/HEAD",
]
NAMES = [
    "example.org",
    "localhost.example.org",
    "127.0.0.1.nip.io",
    "rebind.it",
    "0.0.0.0",
    "127.0.0.2",
    "2130706433",
    "[::]",
    "[::2]",
    "0x7f.1",
]
WRONG_HOSTS = [f"{name}{port}" for name in NAMES for port in ("", ":8081", ":80")]
WRONG_HOSTS += [
    "",
    ":8081",
    "localhost:",
    "localhost:x",
    "localhost:999999",
    "localhost@example.org",
    "example.org@localhost",
]
WRONG_HOSTS += [
    "localhost, example.org",
    "localhost example.org",
    "localhost/x",
    "localhost#",
    "localhost\\x",
    "\u2113ocalhost",
    "localhost.",
]
ORIGINS = [
    "null",
    "",
    "http://",
    "file://",
    "http://example.org",
    "https://127.0.0.1:8081",
    "http://127.0.0.1",
    "http://127.0.0.1:8082",
]
ORIGINS += [f"http://{host}" for host in WRONG_HOSTS if host] + [
    "http://localhost:8081",
    "http://127.0.0.1:8081/",
    "http://a@127.0.0.1:8081",
]
ORIGINS += [
    "http://127.0.0.1:8081 http://example.org",
    "http://127.0.0.1:8081:8081",
    "chrome-extension://x",
    "javascript:alert(1)",
    "HTTP//x",
]
SITES = ["cross-site", "same-site", "other", "", "none, cross-site"]


def raw(place: RestPlace, path: str, headers: list[tuple[str, str]], method: str = "GET") -> int:
    """The status of a request as it comes over the wire, which no client has made tidy."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    encoded = path.encode(errors="surrogateescape")
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": encoded, "query_string": b"", "root_path": "", "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 1),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers], "state": {},
    }  # fmt: skip
    asyncio.run(place.app(scope, receive, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


def test_at_min_two_hundred_hostile_requests_are_refused(place: RestPlace) -> None:
    """Paths, hosts and origins: none is let through, with a good token or cookie."""
    assert len(PATHS) + len(WRONG_HOSTS) + len(ORIGINS) + len(SITES) >= 200
    place.submit()
    known = ("Authorization", f"Bearer {TOKENS[Role.ADMIN]}")
    cookie = place.ask("GET", f"/login?token={TOKENS[Role.ADMIN]}", None).cookies[COOKIE]
    browser = ("Cookie", f"{COOKIE}={cookie}")
    assert raw(place, "/v1/jobs", [("Host", HOST), known]) == 200
    assert raw(place, "/v1/jobs", [("Host", HOST), browser]) == 200
    for path in PATHS:
        assert raw(place, path, [("Host", HOST), known]) == 404, path
    for host in WRONG_HOSTS:
        for path in ("/v1/jobs", "/v1/health", "/login"):
            assert raw(place, path, [("Host", host), known]) == 421, host
    assert raw(place, "/v1/jobs", [known]) == 421
    assert raw(place, "/v1/jobs", [("Host", HOST), ("Host", "example.org"), known]) == 421
    for origin in ORIGINS:
        for who in (known, browser):
            headers = [("Host", HOST), who, ("Origin", origin), ("Content-Type", "application/json")]
            assert raw(place, "/v1/jobs", headers, "POST") == 403, origin
    for site in SITES:
        headers = [("Host", HOST), browser, ("Origin", f"http://{HOST}"), ("Sec-Fetch-Site", site)]
        assert raw(place, "/v1/jobs", headers, "POST") == 403, site
        assert raw(place, "/v1/jobs", [("Host", HOST), browser, ("Sec-Fetch-Site", site)]) == 403, site
    assert len(place.service.list_jobs()) == 1


def test_sockets_of_other_pages_are_refused(place: RestPlace) -> None:
    """A browser lets any page open one, with the cookie."""

    async def opened(headers: list[tuple[bytes, bytes]]) -> str:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "websocket", "path": "/v1/jobs", "raw_path": b"/v1/jobs", "query_string": b"", "scheme": "ws",
            "headers": headers, "subprotocols": [], "state": {}, "root_path": "",
        }  # fmt: skip
        await place.app(scope, receive, send)  # type: ignore[arg-type]
        return f"{sent[0]['type']} {sent[0].get('code')}"

    cookie = place.ask("GET", f"/login?token={TOKENS[Role.ADMIN]}", None).cookies[COOKIE]
    known = (b"cookie", f"{COOKIE}={cookie}".encode())
    host = (b"host", HOST.encode())
    for headers in ([host, known], [host, known, (b"origin", b"http://example.org")], [host], [known]):
        assert asyncio.run(opened(headers)) == "websocket.close 1008"


# Tokens and cookies


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", TOKENS[Role.ADMIN], "Bearer \xff",
     f"Bearer {hash_of(TOKENS[Role.ADMIN])}",
     f"Bearer {TOKENS[Role.ADMIN]}x", f"Bearer {TOKENS[Role.ADMIN][:-1]}", f"Token {TOKENS[Role.ADMIN]}"],
)  # fmt: skip
def test_a_wrong_token_is_nobodys(place: RestPlace, header: str) -> None:
    """Not even with a good cookie beside it."""
    place.ask("GET", f"/login?token={TOKENS[Role.ADMIN]}", None)
    answer = place.client.get("/v1/jobs", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_token_is_exchanged_for_a_cookie(place: RestPlace) -> None:
    """Which no script can read, no other site sends, and the server forgets when it is told to."""
    answer = place.ask("GET", f"/login?token={TOKENS[Role.OPERATOR]}", None)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/dashboard/jobs")
    given = answer.headers["Set-Cookie"]
    assert "HttpOnly" in given
    assert "SameSite=strict" in given
    assert TOKENS[Role.OPERATOR] not in given
    assert place.client.get("/v1/me").json() == {"name": "operator-person", "role": "operator"}
    own = {"Origin": f"http://{HOST}"}
    assert place.client.post("/v1/jobs", json={"definition": "small"}).status_code == 403
    assert place.client.post("/v1/jobs", json={"definition": "small"}, headers=own).status_code == 201
    cookie = answer.cookies[COOKIE]
    assert place.client.delete("/v1/session", headers=own).status_code == 204
    assert place.client.get("/v1/me", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401
    assert place.ask("GET", "/login?token=wrong", None).status_code == 403


def test_servers_of_one_host_have_cookies_of_their_own(place: RestPlace) -> None:
    """A browser sends a cookie to all ports of a host: another server's is not taken, and not taken for two."""
    other = dataclasses.replace(place.door, port=8082)
    session = other.sessions.begin(Principal("ann", Role.VIEWER), other.clock_s())
    assert other.cookie == "penstock_session_8082" != place.door.cookie
    both = {"cookie": [f"{place.door.cookie}=theirs; {other.cookie}={session}"]}
    who = other.authenticate(both)
    assert who is not None
    assert who.name == "ann"
    assert other.authenticate({"cookie": [f"{place.door.cookie}={session}"]}) is None
    assert other.authenticate({"cookie": [f"{other.cookie}={session}; {other.cookie}=x"]}) is None


def test_a_body_has_a_limit(place: RestPlace) -> None:
    """Whether or not it tells its length."""
    large = b'{"definition": "' + b"x" * (1 << 17) + b'"}'
    headers = {"Content-Type": "application/json"}
    assert place.ask("POST", "/v1/jobs", content=large, headers=headers).status_code == 413
    assert place.ask("POST", "/v1/jobs", content=iter([large]), headers=headers).status_code == 413
    assert place.ask("POST", "/v1/jobs", content=b"{}", headers={"Content-Length": "x"}).status_code == 400
    assert place.ask("POST", "/v1/jobs", content=b'{"definition": "small"}').status_code == 422


def test_all_answers_have_the_headers_of_security(place: RestPlace) -> None:
    """Refusals too."""
    for answer in (
        place.ask("GET", "/v1/jobs"),
        place.ask("GET", "/v1/jobs", None),
        place.ask("GET", "/v1/jobs", headers={"Host": "example.org"}),
        place.ask("GET", "/v1/none"),
    ):
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_no_secret_gets_out(
    place: RestPlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canaries in bindings, Spark settings and requests are in no answer and in no log."""
    caplog.set_level(logging.DEBUG)
    place.define(
        "secret",
        f"""bindings:
  hits: kafka://user:{CANARY}-1@127.0.0.1:9092/hits?sasl.password={CANARY}-2
  queue: amqp://guest:{CANARY}-3@127.0.0.1:5672/%2F/readings
  commands: amqp://guest:{CANARY}-8@127.0.0.1:1/%2F/steering
spark:
  spark.hadoop.fs.s3a.secret.key: {CANARY}-4
""",
    )
    (place.definitions / "broken.yaml").write_text(
        f"job: secret.py\nbindings: {CANARY}-5\nspark: [{CANARY}-6]\n"
    )
    job_id = place.submit("secret")
    checkpoint = place.begin(job_id, receipts=f"kafka://127.0.0.1:9092/told?sasl.password={CANARY}-7")
    masked = msgspec.structs.replace(
        read_command_catalog(checkpoint.folder), commands="amqp://guest:***@127.0.0.1:1/%2F/steering"
    )
    checkpoint.save(CONTROL_FILE, masked)
    answers = [place.ask("PATCH", f"/v1/jobs/{job_id}", json={"desired": "PAUSED"})]
    for method, path, _ in operations(place.app):
        filled = one_of(path.replace("{job_id}", job_id).replace("{operation_id}", answers[0].json()["id"]))
        params = {"seconds": "1"} if path.endswith("/stream") else {"step": "step 0"}
        contents: tuple[dict[str, Any], ...] = (
            {},
            {"definition": f"{CANARY}-named"},
            {"definition": "secret", "restart": f"{CANARY}-named"},
            {"kind": "set", "target": "step 0/1", "payload": {"limit": 1}},
            {"format": "csv"},
        )
        for content in ({},) if method == "get" else contents:
            more = {} if method == "get" else {"json": content}
            answers.append(place.ask(method.upper(), filled, params=params, **more))
    answers.append(place.ask("GET", f"/login?token={CANARY}-9", None))
    answers.append(place.ask("GET", "/v1/jobs", headers={"Authorization": f"Bearer {CANARY}-10"}))
    monkeypatch.setattr(place.service, "definitions", lambda: {}[CANARY])
    answers.append(place.ask("GET", "/v1/definitions"))
    told = [answer.text + str(answer.headers) for answer in answers]
    assert any("secret" in text for text in told)
    # The command went on its way to the broker, by the password that is nowhere told.
    assert any("no RabbitMQ answers" in text for text in told)
    lines = logging.Formatter()
    # The client's own log has its URLs.
    logged = "\n".join(lines.format(r) for r in caplog.records if not r.name.startswith("http"))
    assert "failed because of a bug in penstock, KeyError" in logged
    # An id or a restart strategy that a client has got wrong is named to it: those are no secrets.
    for text in [*told, logged]:
        assert CANARY not in text.replace(f"{CANARY}-named", "")
        assert not any(token in text for token in TOKENS.values())
