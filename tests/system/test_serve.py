"""`penstock serve` as users start it, with jobs over HTTP and the command line, from submission to an orderly
end.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from job_process import await_true
from rooms import read_folder, write_file
from served import Served
from typer.testing import CliRunner

from penstock.cli import app

DEFINITION = """
job: tallies.sql
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
    made = Served(tmp_path, "tallies.sql", definition, {"PENSTOCK_SERVER_TOKENS": f"ann viewer {CANARY}"})
    yield made
    made.close()


def penstock(served: Served, *arguments: str) -> str:
    """Return the output of a command. The home says where the server is."""
    nothing = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": "", "PENSTOCK_CHECKPOINT": ""}
    result = CliRunner(env=nothing).invoke(app, [*arguments, "--home", str(served.home)])
    assert result.exit_code == 0, f"{arguments}: {result.output}\n{served.log()}"
    return result.stdout


def told(served: Served, *arguments: str) -> Any:
    return json.loads(penstock(served, *arguments, "-o", "json"))


def hits(served: Served) -> int:
    """Return the newest count of the page."""
    return max((tally["hits"] for tally in read_folder(served.root / "tallies")), default=0)


def send(served: Served, *numbers: int) -> None:
    records = [{"page": "a", "number": number} for number in numbers]
    write_file(served.root / "hits", f"{numbers[0]:06}.jsonl", records)


def test_jobs_live_by_http_and_the_command_line(served: Served) -> None:
    """One job is submitted, commanded, and stopped with a savepoint; another starts from it, and is canceled
    within 10 s.

    It is a SQL file. A command changes its parameter, which the savepoint keeps. SIGTERM ends the server,
    whose secrets appear nowhere.
    """
    send(served, *range(10))
    submission = {"definition": "tallies", "name": "first"}
    asked = served.client.post("/v1/jobs", json=submission, headers={"Idempotency-Key": "1"})
    assert asked.status_code == 201, asked.text
    job_id = asked.json()["job"]
    await_true(lambda: served.job(job_id)["status"] == "RUNNING", served.log)
    await_true(lambda: hits(served) == 10, served.log)
    states = served.client.get(f"/v1/jobs/{job_id}/state").raise_for_status().json()
    assert states[0]["states"]
    seen = httpx.get(f"{served.started['url']}/v1/jobs", headers={"Authorization": f"Bearer {CANARY}"})
    assert [job["id"] for job in seen.json()["items"]] == [job_id]
    assert httpx.get(f"{served.started['url']}/v1/jobs").status_code == 401

    # The progress of a job is written once a second.
    await_true(
        lambda: (told(served, "list")[0]["progress"] or {}).get("records_in") == {"hits": 10}, served.log
    )
    [job] = told(served, "list")
    assert (job["id"], job["status"]) == (job_id, "RUNNING")
    assert "RUNNING since" in penstock(served, "info", "first")
    to_limit = ("--kind", "set", "--target", "tallies.where", "--json", '{"least": 100}')
    sent = told(served, "control", "send", "first", *to_limit, "--wait")
    assert sent["status"] == "APPLIED"
    assert sent["issued_by"] == "owner"
    send(served, 99, 100)
    await_true(lambda: hits(served) == 11, served.log)

    savepoint = penstock(served, "stop", job_id, "--savepoint").strip()
    assert told(served, "list", "--status", "FINISHED")[0]["id"] == job_id
    assert [one["id"] for one in told(served, "savepoint", job_id, "--list")] == [savepoint]

    send(served, 98, 97, 101)
    penstock(served, "submit", "tallies", "--name", "second", "--from-savepoint", savepoint)
    # It continues with the first job's state.
    await_true(lambda: hits(served) == 12, served.log)
    begun_s = time.monotonic()
    penstock(served, "cancel", "second")
    seconds = time.monotonic() - begun_s
    print(f"canceled within {seconds:.1f} s")
    assert told(served, "info", "second")["status"] == "CANCELED"
    assert seconds < 10
    assert "asked for: cancel" in penstock(served, "events", "second")

    # A client follows its events while it ends.
    with served.client.stream("GET", "/v1/events/stream") as events:
        seen = ""
        for text in events.iter_text():
            seen += text
            if "CANCELED" in seen:
                break
        served.process.send_signal(signal.SIGTERM)
        events.read() if not events.is_stream_consumed else None
    assert served.process.wait(30) == 0
    assert not (served.home / "server.json").exists()
    # This includes the server's output, which is not a terminal here.
    for path in served.root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert served.started["token"].encode() not in content, path
