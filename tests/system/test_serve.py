"""`penstock serve` as users start it: a job is submitted, seen and canceled by HTTP, and the server ends in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from job_process import await_true
from rooms import read_folder, write_file
from served import Served

DEFINITION = """
job: tally_job.py
bindings:
  hits: jsonl:{hits}
  tallies: jsonl:{tallies}
parallelism: 2
master: local[2]
"""
CANARY = "canary-8c2e-0123456789-0123456789-0123456789"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    for folder in ("hits", "tallies"):
        (tmp_path / folder).mkdir()
    definition = DEFINITION.format(hits=tmp_path / "hits", tallies=tmp_path / "tallies")
    made = Served(tmp_path, "tally_job.py", definition, {"PENSTOCK_SERVER_TOKENS": f"ann viewer {CANARY}"})
    yield made
    made.close()


def test_a_job_is_run_and_canceled_by_http(served: Served) -> None:
    """It is RUNNING, works, and is CANCELED within 10 s; SIGTERM ends the server, whose secrets are nowhere."""
    write_file(served.root / "hits", "0.jsonl", [{"page": "a", "number": n} for n in range(10)])
    asked = served.client.post("/v1/jobs", json={"definition": "tally"}, headers={"Idempotency-Key": "1"})
    assert asked.status_code == 201, asked.text
    job_id = asked.json()["job"]
    await_true(lambda: served.job(job_id)["status"] == "RUNNING", served.log)
    await_true(lambda: len(read_folder(served.root / "tallies")) == 10, served.log)
    states = served.client.get(f"/v1/jobs/{job_id}/state").raise_for_status().json()
    assert states[0]["states"]

    seen = httpx.get(f"{served.started['url']}/v1/jobs", headers={"Authorization": f"Bearer {CANARY}"})
    assert [job["id"] for job in seen.json()["items"]] == [job_id]
    assert httpx.get(f"{served.started['url']}/v1/jobs").status_code == 401

    begun = time.monotonic()
    operation = served.client.patch(f"/v1/jobs/{job_id}", json={"desired": "CANCELED"})
    assert operation.status_code == 202
    await_true(lambda: served.job(job_id)["status"] == "CANCELED", served.log)
    assert time.monotonic() - begun < 10
    assert served.client.get(operation.headers["Location"]).json()["state"] == "DONE"

    with served.client.stream("GET", "/v1/events/stream") as events:
        told = ""
        for text in events.iter_text():
            told += text
            if "CANCELED" in told:
                break
        served.process.send_signal(signal.SIGTERM)
        events.read() if not events.is_stream_consumed else None
    assert served.process.wait(30) == 0
    assert not (served.home / "server.json").exists()
    for path in served.root.rglob("*"):
        if path.is_file() and path.name != "serve.out":
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert served.started["token"].encode() not in content, path
