"""The doctor on the environment's object store, for which a small server with its own clock stands in."""

from __future__ import annotations

import email.utils
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from penstock.doctor.object_store import check_object_store, named_endpoint
from penstock.machine.local_server import free_port

NOW_S = 1_800_000_000.0
VARIABLE = "AWS_ENDPOINT_URL"


class Store(BaseHTTPRequestHandler):
    """Refuses every request, like a store without a login, and sends its time."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(NOW_S - 2, usegmt=True)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Store) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_store_that_answers_is_told_with_its_clock(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any answer to a request without a login will do."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    finding = check_object_store(VARIABLE, endpoint, now=lambda: NOW_S)
    assert (finding.status, finding.found) == (
        "ok",
        f"{endpoint} answers; its clock is -2 s from this one",
    ), finding


@pytest.mark.parametrize(
    ("skew_s", "status"),
    [(0, "ok"), (-59, "ok"), (61, "warning"), (-899, "warning"), (901, "failed"), (-5000, "failed")],
)
def test_a_clock_that_is_far_away_is_told(skew_s: int, status: str) -> None:
    """Beyond a quarter of an hour the store refuses requests."""
    date = email.utils.formatdate(NOW_S + skew_s, usegmt=True)
    finding = check_object_store(VARIABLE, "https://store", lambda endpoint: date, lambda: NOW_S)
    assert finding.status == status
    assert f"{skew_s:+d} s from this one" in finding.found
    assert ("time service" in finding.remedy) == (status != "ok")


@pytest.mark.parametrize("date", [None, "soon"])
def test_a_store_that_does_not_tell_its_time_is_in_order(date: str | None) -> None:
    """Not every proxy passes the time on."""
    finding = check_object_store(VARIABLE, "https://store", lambda endpoint: date)
    assert (finding.status, "without its time" in finding.found) == ("ok", True)


def test_a_store_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs may not need it."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    finding = check_object_store(VARIABLE, f"http://127.0.0.1:{free_port()}")
    assert finding.status == "warning"
    assert "Connection refused" in finding.found
    assert VARIABLE in finding.remedy


def test_what_is_no_address_is_told() -> None:
    """It is not contacted."""
    finding = check_object_store(VARIABLE, "file:///etc/passwd")
    assert (finding.status, finding.found) == (
        "failed",
        f"{VARIABLE} is not an address like https://HOST:PORT",
    )


def test_the_first_variable_that_is_set_counts() -> None:
    """The order is the jobs' own; without any variable nothing is checked."""
    assert list(named_endpoint({})) == []
    both = {"AWS_ENDPOINT_URL": "https://b", "AWS_ENDPOINT_URL_S3": "https://a"}
    assert list(named_endpoint(both)) == [("AWS_ENDPOINT_URL_S3", "https://a")]
