"""What a page of the dashboard may read and do, by user."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from rest_support import HOST, TOKENS, RestPlace
from starlette.requests import Request

from penstock.errors import JobStateError
from penstock.server.api.access import Role
from penstock.server.api.guard import COOKIE
from penstock.server.dashboard import page_session
from penstock.server.dashboard.jobs_page import job_row, read_jobs
from penstock.server.dashboard.page_session import Readings, SessionOverError, Visit


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the messages to the browser, which is not there."""
    said: list[str] = []

    class Ui:
        class context:
            client = None

        @staticmethod
        def notify(text: str, **_: Any) -> None:
            said.append(text)

    monkeypatch.setattr(page_session, "ui", Ui)
    monkeypatch.setattr(page_session, "end_page", lambda _: said.append("the end"))
    return said


def visit_of(place: RestPlace, role: Role) -> Visit:
    cookie = place.ask("GET", f"/login?token={TOKENS[role]}", None).cookies[COOKIE]
    headers = [(b"host", HOST.encode()), (b"cookie", f"{COOKIE}={cookie}".encode())]
    state = {"context": place.context, "readings": Readings()}
    return Visit(Request({"type": "http", "headers": headers, "state": state}))


@pytest.mark.parametrize("role", Role)
def test_an_action_is_for_its_role(place: RestPlace, told: list[str], role: Role) -> None:
    """The role is checked when the action runs, whatever the browser sends. The manager is woken at once."""
    job_id = place.submit()
    visit = visit_of(place, role)
    wakes = place.wakes
    done = asyncio.run(visit.act(Role.OPERATOR, lambda who: place.service.cancel(job_id, who)))
    assert (done is not None) == role.covers(Role.OPERATOR) == (place.wakes > wakes)
    assert [e.who for e in place.service.events(job_id) if e.what == "asked for: cancel"] == (
        [f"{role}-person"] if role.covers(Role.OPERATOR) else []
    )
    assert bool(told) == (role is Role.VIEWER)
    assert all("needs the role operator" in text for text in told)


def test_an_action_after_the_session_ends_the_page(place: RestPlace, told: list[str]) -> None:
    """The action is not carried out."""
    visit = visit_of(place, Role.ADMIN)
    assert visit.may(Role.ADMIN)
    place.door.sessions._known.clear()
    assert asyncio.run(visit.act(Role.VIEWER, lambda who: who)) is None
    assert told == ["the end"]
    with pytest.raises(SessionOverError, match="penstock serve printed"):
        visit.may(Role.VIEWER)


def test_what_goes_wrong_is_told(place: RestPlace, told: list[str]) -> None:
    """The message is a sentence."""

    def fail(_: str) -> None:
        raise JobStateError("The job is over.")

    assert asyncio.run(visit_of(place, Role.ADMIN).act(Role.OPERATOR, fail)) is None
    assert told == ["The job is over."]


def test_pages_share_what_they_read() -> None:
    """Ten concurrent requests read once, in a thread; later ones read again; unused data is dropped."""
    now_s = 0.0
    readings = Readings(lambda: now_s)
    reads: list[bool] = []

    def read() -> int:
        reads.append(threading.current_thread() is threading.main_thread())
        return len(reads)

    async def ask() -> list[int]:
        return await asyncio.gather(*(readings.get("jobs", read) for _ in range(10)))

    async def go_on() -> None:
        nonlocal now_s
        for at_s, number in ((0.0, 1), (0.5, 1), (1.0, 2)):
            now_s = at_s
            assert await ask() == [number] * 10
        assert reads == [False, False]
        assert readings.keep("tail", lambda: "first") == readings.keep("tail", lambda: "second") == "first"
        now_s = 100.0
        await ask()
        assert readings.keep("tail", lambda: "third") == "third"

    asyncio.run(go_on())


def test_a_reading_that_fails_is_tried_again() -> None:
    """Everybody who asked gets the error."""
    readings = Readings()

    def fail() -> int:
        raise JobStateError("not now")

    async def ask() -> int:
        with pytest.raises(JobStateError):
            await readings.get("x", fail)
        return await readings.get("x", lambda: 7)

    assert asyncio.run(ask()) == 7


def test_fifty_jobs_are_listed_at_once(place: RestPlace) -> None:
    """It takes under 200 ms, with a row for each; most jobs have ended."""
    for number in range(50):
        job_id = place.submit(name=f"job-{number}")
        if number % 10:
            place.service.cancel(job_id, "ann")
    times = []
    for _ in range(5):
        begun = time.process_time()
        rows = [job_row(job, 1) for job in read_jobs(place.service)]
        times.append(time.process_time() - begun)
    assert len(rows) == 50
    assert min(times) < 0.2
