"""`penstock state` on a job of a server: the value of a key, and a dump that is fetched."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rooms_job import snapshot
from served_rest import ServedRest
from test_managed_commands import penstock, refused, told

from penstock.cli import managed_state
from penstock.errors import ExternalSystemError
from penstock.jobs.state_pages import KeyPage, StoredKey
from penstock.server import operating
from penstock.server.api.access import Role
from penstock.server.looking import StateReader
from penstock.server.operating import Operator
from penstock.server.state_reader import Question
from penstock.snapshots.reading import verify

# Stands in for `penstock.cli` of the server's task: writes a dump where it is told to.
TASK = """
import json, shutil, sys
place = sys.argv[sys.argv.index("--to") + 1]
shutil.copytree(MADE, place)
print(json.dumps({"kind": "dump", "id": "drawn-7", "uri": place, "rows": 11}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServedRest]:
    made = ServedRest(tmp_path)
    yield made
    made.close()


def test_the_value_of_a_key_is_told(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the server's reader is there; exit code 1 for a key that holds nothing."""
    asked: list[Question] = []

    def ask(self: StateReader, question: Question) -> KeyPage:
        asked.append(question)
        if len(asked) == 1:
            raise ExternalSystemError("The state cannot be shown yet. Ask again.")
        if len(asked) == 4:
            return KeyPage(batch=0, items=(), next=None)
        values = None if len(asked) == 5 else {"limit": 7}
        held = StoredKey(key=[1, "b"], key_group=3, bytes=9, values=values, timers=None)
        return KeyPage(batch=0, items=(held,), next=None)

    monkeypatch.setattr(StateReader, "ask", ask)
    monkeypatch.setattr(managed_state, "_PAUSE_S", 0.01)
    job_id = place.submit()
    checkpoint = place.start(job_id)
    (checkpoint.spark_folder / "commits").mkdir()
    (checkpoint.spark_folder / "commits" / "0").write_text("v1")
    get = ("state", "get", job_id, "--step=step 0", "--key=1")
    assert penstock(place, *get).stdout == "limit: 7\n"
    assert told(penstock(place, *get, "-ojson")) == {"limit": 7}
    assert [question.wanted.step for question in asked] == ["step 0"] * 3
    nothing = penstock(place, *get)
    assert (nothing.exit_code, "holds nothing" in nothing.stderr) == (1, True)
    refused(penstock(place, *get), "9 bytes, which is more than a server tells")
    refused(penstock(place, *get, role=Role.VIEWER), "needs the role operator")
    listed = told(penstock(place, "state", "ls", job_id, "-ojson"))
    assert [step["step"] for step in listed] == ["step 0"]


def test_a_dump_is_fetched(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a new folder here, whole; the server keeps none."""
    made = place.root / "made"
    snapshot(made, "csv")
    monkeypatch.setattr(operating, "_CLI", (sys.executable, "-c", TASK.replace("MADE", repr(str(made)))))
    job_id = place.submit()
    with contextlib.closing(sqlite3.connect(place.home.store)) as store:
        store.execute("UPDATE jobs SET epoch = 1")
        store.commit()
    stop = threading.Event()

    def work() -> None:
        operator = Operator(place.store, place.home)
        leader = place.store.lead("here", 60_000)
        assert leader is not None
        while not stop.wait(0.05):
            operator.work(leader)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        folder = place.root / "fetched"
        result = penstock(place, "state", "dump", job_id, f"--to={folder}", "--format=csv", "-ojson")
        assert json.loads(result.stdout)["uri"] == str(folder), result.output
        assert verify(str(folder)).sound
        assert sorted(p.name for p in folder.rglob("*")) == sorted(p.name for p in made.rglob("*"))
        assert place.service.dumps() == []
        refused(penstock(place, "state", "dump", job_id, f"--to={folder}"), "is not empty")
    finally:
        stop.set()
        thread.join()
