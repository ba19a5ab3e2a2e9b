"""`penstock list` and `penstock cancel` in a home without a running server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import small_driver
from left_drivers import kill_left_drivers
from rest_support import RestPlace
from typer.testing import CliRunner

from penstock.cli import app
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager
from penstock.server.runs.processes import is_alive
from penstock.server.server import Started


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestPlace]:
    """Return a home with two working jobs, whose server has ended."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    made = RestPlace(tmp_path)
    made.define("other", "restart: none")
    yield made
    kill_left_drivers(made.home.root)
    made.close()


def started_jobs(place: RestPlace) -> tuple[str, str]:
    """Start two jobs, and let their manager end."""
    jobs = place.submit(), place.submit("other")
    manager = Manager(place.store, place.catalog, place.home)
    deadline_s = time.monotonic() + 30
    while {place.service.get(job).status.value for job in jobs} != {"RUNNING"}:
        assert time.monotonic() < deadline_s
        manager.look()
        time.sleep(0.02)
    place.store.resign(manager.name)
    return jobs


def penstock(place: RestPlace, *arguments: str) -> Any:
    nothing = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": "", "PENSTOCK_CHECKPOINT": ""}
    return CliRunner(env=nothing).invoke(app, [*arguments, "--home", str(place.home.root)])


@pytest.mark.parametrize("leaves_address", [False, True])
def test_a_job_is_seen_and_ended_without_a_server(place: RestPlace, leaves_address: bool) -> None:
    """This holds also if the server was killed and left its address; other jobs are not affected."""
    one, other = started_jobs(place)
    if leaves_address:
        gone = Started("http://127.0.0.1:1", "", "token", 2**22 + 1)
        (place.home.root / "server.json").write_bytes(msgspec.json.encode(gone))
    listed = penstock(place, "list", "-o", "json")
    assert listed.exit_code == 0, listed.output
    found = {job["id"]: job for job in json.loads(listed.stdout)}
    assert {job: found[job]["status"] for job in found} == {one: "RUNNING", other: "RUNNING"}
    assert found[one]["progress"] == {"batch_id": 7}
    assert "No server is running" in listed.stderr
    canceled = penstock(place, "cancel", "small")
    assert canceled.exit_code == 0, canceled.output
    assert f"The job {one} is canceled." in canceled.stderr
    assert not is_alive(place.home.run(one, 1))
    assert is_alive(place.home.run(other, 1))
    assert place.service.get(one).status.value == "CANCELED"
    assert json.loads(penstock(place, "cancel", other, "-o", "json").stdout)["status"] == "CANCELED"
    assert json.loads(penstock(place, "list", "-o", "json").stdout) == []


def test_an_unknown_job_is_told(place: RestPlace) -> None:
    """The message equals a server's."""
    started_jobs(place)
    refused = penstock(place, "cancel", "none-such")
    assert refused.exit_code == 2
    assert "There is no job 'none-such'" in refused.stderr


def test_a_home_without_jobs_needs_a_server(tmp_path: Path) -> None:
    """Without jobs there is nothing to list."""
    nothing = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": ""}
    told = CliRunner(env=nothing).invoke(app, ["list", "--home", str(tmp_path)])
    assert told.exit_code == 3
    assert "Start one with penstock serve" in told.stderr
