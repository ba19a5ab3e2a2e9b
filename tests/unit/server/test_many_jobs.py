"""A store with a past: fifty jobs, most of them over, with their runs and events, are listed at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rest_support import TOKENS
from served_rest import ServedRest
from store_cases import asks, become, new_job

from penstock.server.api.access import Role
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.store.database import events, runs
from penstock.server.store.engine import connect, sqlite_url, writing

JOBS = 50
LIVE = 4
RUNS = 40
EVENTS = 300
REQUESTS = 9
LISTED_WITHIN_S = 0.2


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRest]:
    made = ServedRest(tmp_path)
    yield made
    made.close()


def fill(served: ServedRest) -> None:
    """Jobs with settings as real ones have them, and what has happened to them in months."""
    leader = served.store.lead("a manager", 60_000)
    assert leader is not None
    uris = {f"stream-{number}": f"kafka://broker-{number}:9092/topic" for number in range(8)}
    for number in range(JOBS):
        served.store.submit(new_job(f"{number:02}", settings={"bindings": uris}), asks(definition="tally"))
        ends = [JobStatus.RUNNING] if number < LIVE else [JobStatus.RUNNING, JobStatus.FAILED]
        become(served.store, leader, f"job-{number:02}", JobStatus.STARTING, *ends)
    past = [
        {
            "job_id": f"job-{number:02}",
            "epoch": epoch,
            "host": "here",
            "created_ms": epoch,
            "why": "it was killed",
        }
        for number in range(JOBS)
        for epoch in range(2, RUNS)
    ]
    told = [
        {"at_ms": at, "job_id": f"job-{number:02}", "who": "manager", "what": "status", "detail": {"run": at}}
        for at in range(EVENTS)
        for number in range(JOBS)
    ]
    engine = connect(sqlite_url(served.home.store))
    with writing(engine) as connection:
        connection.execute(runs.insert(), past)
        connection.execute(events.insert(), told)
    engine.dispose()


def test_fifty_jobs_are_listed_at_once(served: ServedRest) -> None:
    """In less than 200 ms, over HTTP, with 2,000 runs and 15,000 events in the store."""
    fill(served)
    took_s = []
    header = {"Authorization": f"Bearer {TOKENS[Role.VIEWER]}"}
    with httpx.Client(base_url=served.url, headers=header, timeout=30) as client:
        for _ in range(REQUESTS):
            begun_s = time.perf_counter()
            listed = client.get("/v1/jobs", params={"limit": JOBS}).raise_for_status().json()
            took_s.append(time.perf_counter() - begun_s)
    found = listed["items"]
    assert len(found) == JOBS
    assert sum(job["status"] == "FAILED" for job in found) == JOBS - LIVE
    assert statistics.median(took_s) < LISTED_WITHIN_S, took_s
    print(f"listed in {statistics.median(took_s) * 1000:.0f} ms, at most {max(took_s) * 1000:.0f} ms")
