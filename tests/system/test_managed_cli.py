"""The command line with a server, as users have it: from the submission of a job to its end, and on in another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_process import await_true
from rooms import read_folder, write_file
from served import Served
from typer.testing import CliRunner

from penstock.cli import app

DEFINITION = """
job: tally_job.py
bindings:
  hits: jsonl:{hits}
  tallies: jsonl:{tallies}
parallelism: 2
master: local[2]
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    for folder in ("hits", "tallies"):
        (tmp_path / folder).mkdir()
    definition = DEFINITION.format(hits=tmp_path / "hits", tallies=tmp_path / "tallies")
    made = Served(tmp_path, "tally_job.py", definition, {})
    yield made
    made.close()


def penstock(served: Served, *arguments: str) -> str:
    """What a command has printed. The home says where the server is."""
    nothing = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": "", "PENSTOCK_CHECKPOINT": ""}
    result = CliRunner(env=nothing).invoke(app, [*arguments, "--home", str(served.home)])
    assert result.exit_code == 0, f"{arguments}: {result.output}\n{served.log()}"
    return result.stdout


def told(served: Served, *arguments: str) -> Any:
    return json.loads(penstock(served, *arguments, "-o", "json"))


def test_a_job_lives_by_the_command_line(served: Served) -> None:
    """Submitted, listed, steered, stopped with a savepoint; another begins with it, and is canceled within 10 s."""
    write_file(served.root / "hits", "0.jsonl", [{"page": "a", "number": n} for n in range(10)])
    job_id = penstock(served, "run", "--detached", "tally", "--name", "first").strip()
    await_true(lambda: len(read_folder(served.root / "tallies")) == 10, served.log)
    # The progress of a job is written once a second.
    await_true(
        lambda: (told(served, "list")[0]["progress"] or {}).get("records_in") == {"hits": 10}, served.log
    )
    [job] = told(served, "list")
    assert (job["id"], job["status"]) == (job_id, "RUNNING")
    assert "RUNNING since" in penstock(served, "info", "first")
    sent = told(served, "control", "send", "first", "--kind", "trace", "--target", "count", "--wait")
    assert sent["status"] == "APPLIED"
    assert sent["issued_by"] == "owner"

    savepoint = penstock(served, "stop", job_id, "--savepoint").strip()
    assert told(served, "list", "--status", "FINISHED")[0]["id"] == job_id
    assert [one["id"] for one in told(served, "savepoint", job_id, "--list")] == [savepoint]

    write_file(served.root / "hits", "1.jsonl", [{"page": "a", "number": 10}])
    penstock(served, "run", "--detached", "tally", "--name", "second", "--from-savepoint", savepoint)
    await_true(lambda: len(read_folder(served.root / "tallies")) == 11, served.log)
    # It goes on from what the first one knew.
    assert max(tally["hits"] for tally in read_folder(served.root / "tallies")) == 11
    begun_s = time.monotonic()
    penstock(served, "cancel", "second")
    seconds = time.monotonic() - begun_s
    print(f"canceled within {seconds:.1f} s")
    assert told(served, "info", "second")["status"] == "CANCELED"
    assert seconds < 10
    assert "asked for: cancel" in penstock(served, "events", "second")
