"""Access: tokens, addresses, hosts, origins and paths, decided without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.server.api.access import (
    AccessError,
    Grant,
    Principal,
    Role,
    Sessions,
    TokenBook,
    bind_address,
    check_bind,
    grants_of,
    hash_of,
    host_of,
    is_plain_path,
    new_token,
    origin_problem,
)
from penstock.server.manager.scaling_state import AUTOSCALER
from penstock.server.store.user_requests import MANAGER

ANN = Principal("ann", Role.OPERATOR)
HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
OWN = "http://127.0.0.1:8081"


def test_each_role_may_do_what_those_before_it_may() -> None:
    """And nothing more."""
    order = [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    for place, role in enumerate(order):
        assert [role.covers(other) for other in order] == [place >= n for n in range(3)]


def test_a_token_is_known_by_its_hash() -> None:
    """Which is all that is kept of it."""
    token = new_token()
    book = TokenBook([Grant(ANN, hash_of(token))])
    assert book.find(token) == ANN
    assert book.find(hash_of(token)) is None
    assert book.find(token[:-1]) is None
    assert book.find("") is None
    assert token not in repr(vars(book))
    assert len({new_token() for _ in range(100)}) == 100


def test_tokens_come_in_lines() -> None:
    """With their names and roles, as they are or by their hashes."""
    one, two = new_token(), new_token()
    lines = ["# who may ask", "", f"ann operator {one}", f"bob\tviewer {hash_of(two)}"]
    book = TokenBook(grants_of(lines, "tokens.txt"))
    assert book.find(one) == ANN
    assert book.find(two) == Principal("bob", Role.VIEWER)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ann operator", "has 2 words"),
        ("ann king {}", "has an unknown role"),
        ("a/b viewer {}", "does not begin with a name"),
        ("ann viewer short", "fewer than 32 characters"),
        ("ann viewer sha256:12", "has an invalid hash"),
        ("ann viewer {} {}", "has 4 words"),
    ],
)
def test_a_wrong_line_is_told_without_its_token(line: str, told: str) -> None:
    """By its number and place."""
    secret = "canary-" + new_token()
    with pytest.raises(AccessError, match=told) as raised:
        grants_of(["", line.format(secret, secret)], "tokens.txt")
    assert "Line 2 of tokens.txt" in str(raised.value)
    assert secret not in str(raised.value)
    with pytest.raises(AccessError, match="the same token as another line"):
        grants_of([f"a viewer {secret}", f"b admin {hash_of(secret)}"], "tokens.txt")


@pytest.mark.parametrize("name", [MANAGER, AUTOSCALER, "owner"])
def test_nobody_has_a_name_of_the_server(name: str) -> None:
    """Otherwise a rescale by such a person would pass for one of the policy."""
    with pytest.raises(AccessError, match=f"the name {name}, which is reserved for the server itself"):
        grants_of([f"{name} operator {new_token()}"], "tokens.txt")


def test_sessions_end() -> None:
    """With their time, when they are ended, and when there are too many."""
    sessions = Sessions(lasts_s=10, limit=2)
    one = sessions.begin(ANN, 0)
    assert sessions.find(one, 9.9) == ANN
    assert sessions.find(one, 10) is None
    assert sessions.find("other", 0) is None
    two, three = sessions.begin(ANN, 0), sessions.begin(ANN, 0)
    assert [sessions.find(cookie, 1) for cookie in (one, two, three)] == [None, ANN, ANN]
    sessions.end(two)
    assert sessions.find(two, 1) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_this_machine_needs_no_more(host: str) -> None:
    """Neither tokens nor TLS."""
    check_bind(host, tls=False, tokens=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org"])
def test_other_machines_are_let_in_by_tls_and_tokens_only(host: str) -> None:
    """Or expressly."""
    for tls, tokens in ((False, False), (True, False), (False, True)):
        with pytest.raises(AccessError, match="--insecure-bind") as raised:
            check_bind(host, tls=tls, tokens=tokens, insecure=False)
        assert ("TLS" in str(raised.value)) is not tls
    check_bind(host, tls=True, tokens=True, insecure=False)
    check_bind(host, tls=False, tokens=False, insecure=True)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", ":8081", "127.0.0.1:99999", "a b:1", "http://127.0.0.1:1", "[::1:2"]
)
def test_an_address_has_host_and_port(text: str) -> None:
    """Everything else is an error."""
    with pytest.raises(AccessError, match="HOST:PORT"):
        bind_address(text)


def test_hosts_are_allowed_by_name() -> None:
    """At any port, since a tunnel may have another one."""
    for good in (b"localhost", b"LOCALHOST:1", b"127.0.0.1:8081", b"[::1]:80"):
        assert host_of([good], HOSTS) == good.decode()
    assert host_of([], HOSTS) is None
    assert host_of([b"localhost", b"localhost"], HOSTS) is None


@examples(100)
@given(st.binary(max_size=40))
def test_no_other_host_is_allowed(host: bytes) -> None:
    """Whatever it is."""
    found = host_of([host], HOSTS)
    assert found is None or found.lower().rsplit(":", 1)[0].strip("[]:").startswith(
        ("localhost", "127.0.0.1", "::1", "")
    )
    if found is not None:
        name = found[: found.index("]") + 1] if found.startswith("[") else found.partition(":")[0]
        assert name.lower() in HOSTS


@examples(100)
@given(st.binary(max_size=60))
def test_a_plain_path_leads_nowhere_else(path: bytes) -> None:
    """It has no escapes, and no part that begins with a dot."""
    if is_plain_path(path):
        assert not set(path) & set(b"%\\\x00?#;~ ")
        assert path == b"/" or all(part and part[:1] != b"." for part in path[1:].split(b"/"))


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, True),
        ({"origin": [OWN]}, False),
        ({"origin": [OWN], "sec-fetch-site": ["same-origin"]}, False),
        ({"sec-fetch-site": ["same-origin"]}, False),
        ({"origin": [OWN], "sec-fetch-site": ["cross-site"]}, True),
        ({"origin": [OWN], "sec-fetch-site": ["same-site"]}, True),
        ({"origin": ["null"]}, True),
        ({"origin": ["http://127.0.0.1:8082"]}, True),
        ({"origin": ["https://127.0.0.1:8081"]}, True),
        ({"origin": ["http://127.0.0.1:8081.example.org"]}, True),
        ({"origin": ["http://example.org"]}, True),
        ({"origin": [OWN, "http://example.org"]}, True),
        ({"origin": ["http://ann@127.0.0.1:8081/"]}, True),
    ],
)
def test_what_a_browser_asks_unsafely_comes_from_the_own_page(
    headers: dict[str, list[str]], refused: bool
) -> None:
    """With a cookie, and by a socket as well."""
    for method, websocket in (("POST", False), ("PATCH", False), ("DELETE", False)):
        assert (origin_problem(method, headers, OWN, cookie=True, websocket=websocket) is not None) is refused
    by_socket = origin_problem("GET", headers, OWN, cookie=True, websocket=True)
    assert (by_socket is not None) is (refused or "origin" not in headers)


def test_other_pages_may_lead_here_and_read_nothing() -> None:
    """Following a link is no reading."""
    link = {"sec-fetch-site": ["cross-site"], "sec-fetch-mode": ["navigate"], "sec-fetch-dest": ["document"]}
    assert origin_problem("GET", link, OWN, cookie=True) is None
    assert origin_problem("POST", link, OWN, cookie=True) is not None
    for other in ({"sec-fetch-dest": ["iframe"]}, {"sec-fetch-mode": ["no-cors"]}):
        assert origin_problem("GET", {**link, **other}, OWN, cookie=True) is not None


def test_a_program_with_a_token_needs_no_origin() -> None:
    """For no page can make a browser send one."""
    assert origin_problem("POST", {}, OWN, cookie=False) is None
    assert origin_problem("POST", {"origin": ["http://example.org"]}, OWN, cookie=False) is not None
