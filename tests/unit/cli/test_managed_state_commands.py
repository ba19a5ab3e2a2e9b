"""State and savepoints of jobs of a server, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from rooms_job import snapshot
from served_rest import ServedRest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import ExternalSystemError
from penstock.jobs.state_pages import KeyPage, StoredKey
from penstock.server.api.access import Role
from penstock.server.looking import StateReader
from penstock.server.state_reader import Question


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServedRest]:
    made = ServedRest(tmp_path)
    yield made
    made.close()


def penstock(place: ServedRest, *arguments: object, role: Role = Role.ADMIN) -> Result:
    result = CliRunner(env=place.environment(role)).invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_key_is_shown(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the server has it, which may take more than one look; what is too much is not shown."""
    asked: list[Question] = []

    def ask(self: StateReader, question: Question) -> KeyPage:
        asked.append(question)
        if len(asked) == 1:
            raise ExternalSystemError("The state cannot be shown yet: it starts. Ask again.")
        key = question.wanted.key
        held = {
            "5": (StoredKey(key=5, key_group=1, bytes=9, values={"limit": 7}, timers=[{"at": 1}]),),
            "6": (StoredKey(key=6, key_group=1, bytes=5_000_000, values=None),),
        }
        return KeyPage(batch=0, items=held.get(key or "", ()), next=None)

    monkeypatch.setattr(StateReader, "ask", ask)
    job_id = place.submit()
    checkpoint = place.begin(job_id)
    (checkpoint.spark_folder / "commits").mkdir()
    (checkpoint.spark_folder / "commits" / "0").touch()
    words = ("state", "get", job_id, "--step", "step 0", "--key")
    shown = penstock(place, *words, 5)
    assert (shown.exit_code, shown.stdout) == (0, 'limit: 7\n@timers: [{"at":1}]\n'), shown.output
    told = penstock(place, *words, 5, "-ojson", role=Role.OPERATOR)
    assert json.loads(told.stdout) == {"limit": 7, "@timers": [{"at": 1}]}
    nothing = penstock(place, *words, 9)
    assert (nothing.exit_code, "holds nothing for the key 9" in nothing.stderr) == (1, True)
    large = penstock(place, *words, 6)
    assert (large.exit_code, "5,000,000 bytes" in large.stderr) == (2, True)
    refused = penstock(place, *words, 5, role=Role.VIEWER)
    assert (refused.exit_code, "needs the role operator" in refused.stderr) == (2, True)


def test_a_savepoint_is_deleted(place: ServedRest) -> None:
    """By an admin, by its id."""
    snapshot(place.home.savepoints / "sp-1", "arrow", id="sp-1")
    job_id = place.submit()
    refused = penstock(place, "savepoint", job_id, "--dispose", "sp-1", role=Role.OPERATOR)
    assert (refused.exit_code, "needs the role admin" in refused.stderr) == (2, True)
    assert penstock(place, "savepoint", job_id, "--dispose", "sp-2").exit_code == 2
    assert penstock(place, "savepoint", job_id, "--dispose", "../../etc").exit_code == 2
    gone = penstock(place, "savepoint", job_id, "--dispose", "sp-1")
    assert (gone.exit_code, gone.stderr) == (0, "Deleted sp-1.\n"), gone.output
    assert place.service.savepoints() == []
