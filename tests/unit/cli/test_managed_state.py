"""`penstock state` and `penstock savepoint` on a server's job: a key, a downloaded dump, and deletions."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from asked_by_words import penstock, refused
from rooms_job import snapshot
from served_rest import ServedRest

from penstock.errors import ExternalSystemError, QueryError
from penstock.queries.query_answers import AnswerColumn, AnswerContent
from penstock.savepoints.state_pages import KeyPage, StoredKey
from penstock.server.api.access import Role
from penstock.server.manager import operations
from penstock.server.service.state_client import StateClient
from penstock.server.service.state_process import KeysQuestion, QueryQuestion
from penstock.snapshots.snapshot_reader import verify

# Replaces `penstock.cli` in the server's task: writes a dump to the given place.
TASK = """
import json, shutil, sys
place = sys.argv[sys.argv.index("--to") + 1]
shutil.copytree(MADE, place)
print(json.dumps({"kind": "dump", "id": "drawn-7", "uri": place, "rows": 11}))
"""


def test_a_dump_is_fetched(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written completely to a new local folder; the server keeps none."""
    made = place.root / "made"
    snapshot(made, "csv")
    monkeypatch.setattr(operations, "_CLI", (sys.executable, "-c", TASK.replace("MADE", repr(str(made)))))
    job_id = place.submit()
    with contextlib.closing(sqlite3.connect(place.home.store)) as store:
        store.execute("UPDATE jobs SET epoch = 1")
        store.commit()
    stop = threading.Event()

    def work() -> None:
        operator = place.operator()
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


def test_a_key_is_shown(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks again while the server is busy; large values are cut."""
    asked: list[KeysQuestion] = []

    def keys(self: StateClient, question: KeysQuestion) -> KeyPage:
        asked.append(question)
        if len(asked) == 1:
            raise ExternalSystemError("The state of jobs is being read for other users. Try again.")
        key = question.wanted.key
        held = {
            "5": (
                StoredKey(key=5, key_group=1, bytes=9, values={"limit": 7}, timers=[{"at": 1}], windows=None),
            ),
            "6": (StoredKey(key=6, key_group=1, bytes=5_000_000, values=None, timers=None, windows=None),),
        }
        return KeyPage(batch=0, items=held.get(key or "", ()), next=None)

    monkeypatch.setattr(StateClient, "keys", keys)
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
    refused(penstock(place, *words, 5, role=Role.VIEWER), "needs the role operator")


def test_a_query_is_answered_by_the_server(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits apply; a query error is shown with its position."""
    asked: list[QueryQuestion] = []

    def answer(self: StateClient, question: QueryQuestion) -> AnswerContent:
        asked.append(question)
        if "wrong" in question.sql:
            raise QueryError("There is no wrong. (at line 1, column 8)")
        return AnswerContent(7, (AnswerColumn("n", "int64"),), [{"n": 3}])

    monkeypatch.setattr(StateClient, "query", answer)
    job_id = place.submit()
    place.begin(job_id)
    found = penstock(place, "query", job_id, "select 3 as n", "--rows=5", "-ojson")
    assert json.loads(found.stdout) == {
        "batch": 7,
        "columns": [{"name": "n", "type": "int64"}],
        "rows": [{"n": 3}],
    }
    assert (asked[0].sql, asked[0].rows, asked[0].memory_mb) == ("select 3 as n", 5, 1024)
    wrong = penstock(place, "query", job_id, "select wrong")
    assert (wrong.exit_code, "(at line 1, column 8)" in wrong.stderr) == (2, True)
    refused(penstock(place, "query", job_id, "select 1", role=Role.VIEWER), "needs the role operator")


def test_a_savepoint_is_deleted(place: ServedRest) -> None:
    """By an admin, by its id."""
    snapshot(Path(place.home.savepoints) / "sp-1", "arrow", id="sp-1")
    job_id = place.submit()
    refused(
        penstock(place, "savepoint", job_id, "--dispose", "sp-1", role=Role.OPERATOR), "needs the role admin"
    )
    assert penstock(place, "savepoint", job_id, "--dispose", "sp-2").exit_code == 2
    assert penstock(place, "savepoint", job_id, "--dispose", "../../etc").exit_code == 2
    gone = penstock(place, "savepoint", job_id, "--dispose", "sp-1")
    assert (gone.exit_code, gone.stderr) == (0, "Deleted sp-1.\n"), gone.output
    assert place.service.savepoints() == []
