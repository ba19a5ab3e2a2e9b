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
from test_managed_commands import penstock, refused

from penstock.server import operating
from penstock.server.operating import Operator
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
