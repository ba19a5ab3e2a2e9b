"""Which server a client uses, and that its token goes nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client.discovery import Address, AddressError, NoServerError, find_server

URL = "http://127.0.0.1:8081"


def home_with(folder: Path, url: str = URL, token: str = "the-token-of-the-home") -> Path:
    announced = {"url": url, "login": f"{url}/login?token={token}", "token": token, "pid": 1}
    (folder / "server.json").write_text(json.dumps(announced))
    return folder


def test_without_a_name_it_is_the_server_of_the_home(tmp_path: Path) -> None:
    """The token comes from the home's file, not from the environment, which belongs to another server."""
    found = find_server(None, home_with(tmp_path), None, {"PENSTOCK_TOKEN": "other"})
    assert found == Address(URL, "the-token-of-the-home")
    assert "the-token-of-the-home" not in repr(found)


def test_a_name_wins_over_the_environment_and_that_over_the_home(tmp_path: Path) -> None:
    """Either uses the token of the environment."""
    home = home_with(tmp_path)
    variables = {"PENSTOCK_SERVER": "https://one:1", "PENSTOCK_TOKEN": "t"}
    assert find_server(None, home, Path("ca.pem"), variables) == Address("https://one:1", "t", Path("ca.pem"))
    assert find_server("https://two:2/", home, None, {"PENSTOCK_TOKEN": "t"}) == Address("https://two:2", "t")
    assert find_server(f"{URL}/", home, None, {}) == Address(URL, "the-token-of-the-home")


@pytest.mark.parametrize(
    ("named", "variables", "told"),
    [
        ("https://two", {"PENSTOCK_SERVER": "https://one", "PENSTOCK_TOKEN": "secret"}, "names another"),
        ("https://one:1", {"PENSTOCK_SERVER": "https://one:2", "PENSTOCK_TOKEN": "secret"}, "names another"),
        ("https://elsewhere", {}, "No token is known for https://elsewhere"),
        ("http://127.0.0.1:8082", {}, "No token is known"),
        ("http://elsewhere", {"PENSTOCK_TOKEN": "secret"}, "in clear text"),
        ("127.0.0.1:8081", {"PENSTOCK_TOKEN": "secret"}, "http(s)://HOST:PORT"),
        (f"{URL}/login?token=secret", {"PENSTOCK_TOKEN": "secret"}, "http(s)://HOST:PORT"),
        ("http://ann:secret@127.0.0.1", {"PENSTOCK_TOKEN": "secret"}, "http(s)://HOST:PORT"),
        ("http://127.0.0.1:x", {"PENSTOCK_TOKEN": "secret"}, "http(s)://HOST:PORT"),
        ("http://127.0.0.1@evil.example/", {"PENSTOCK_TOKEN": "secret"}, "http(s)://HOST:PORT"),
        (URL, {"PENSTOCK_TOKEN": "secret\nX: y"}, "is not a token"),
    ],
)
def test_what_would_give_a_token_away_is_refused(
    tmp_path: Path, named: str, variables: dict[str, str], told: str
) -> None:
    """The message does not have the token."""
    with pytest.raises(AddressError) as error:
        find_server(named, home_with(tmp_path), None, variables)
    assert told in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("content", [None, "not json", '{"url": 1}'])
def test_no_server_is_told_with_what_to_do(tmp_path: Path, content: str | None) -> None:
    """A broken address file counts as none."""
    if content is not None:
        (tmp_path / "server.json").write_text(content)
    with pytest.raises(NoServerError, match="Start"):
        find_server(None, tmp_path, None, {})
