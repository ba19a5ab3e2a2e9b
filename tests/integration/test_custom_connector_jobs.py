"""Jobs with user-defined sources and sinks: those of the documentation page, and a receiver."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guide_code import PAGE_OF_CONNECTORS, code_of
from integration_support import read_lines

import penstock as ps
from penstock.errors import JobFailedError

RECEIVER = """
from pathlib import Path
from penstock.connectors import Received, RecordReceiver


class Feed(RecordReceiver):
    guarantee = "each record once"

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, after):
        self.next = int(after or 0)

    def receive(self, wait_s):
        lines = self.path.read_bytes().splitlines()[self.next :]
        self.next += len(lines)
        return Received(lines, str(self.next)) if lines else None
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the path of a database for the page's classes, which can be imported as if beside a job file."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "shelf.py").write_text(code_of(PAGE_OF_CONNECTORS, "shelf.py"))
    (code / "feed.py").write_text(RECEIVER)
    monkeypatch.syspath_prepend(code)
    path = str(tmp_path / "shelf.db")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")
    yield path
    for name in ("shelf", "feed"):
        sys.modules.pop(name, None)


def add(path: str, *values: str) -> None:
    """Add notes to the source's table; record ids are their lengths."""
    with sqlite3.connect(path) as db:
        bodies = [json.dumps({"id": len(value), "value": value}) for value in values]
        db.executemany("INSERT INTO notes (body) VALUES (?)", [(body,) for body in bodies])


def kept(path: str) -> list[tuple[int, str]]:
    """Return the rows of the sink's table."""
    return sqlite3.connect(path).execute("SELECT id, value FROM kept ORDER BY id").fetchall()


def keep_job() -> ps.Job:
    job = ps.Job("keep")
    notes = job.data_stream("notes", schema="id BIGINT NOT NULL, value STRING NOT NULL")
    notes.where("value <> ''").sink_to("kept")
    return job


def test_each_record_counts_once_in_all_runs(run_job: Any, shelf: str, tmp_path: Path) -> None:
    """A second run continues after the first; records that the sink rejects, and undecodable ones, are dead
    letters.
    """
    bindings = {
        "notes": f"python:shelf:Notes?path={shelf}",
        "kept": f"python:shelf:Kept?path={shelf}&longest=5",
    }
    add(shelf, "a", "bb", "much too long")
    with sqlite3.connect(shelf) as db:
        db.execute("INSERT INTO notes (body) VALUES ('{')")
    run = run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert (run.records_in["notes"], run.records_out["kept"], run.dead_letters) == (4, 2, 2)
    assert kept(shelf) == [(1, "a"), (2, "bb")]
    letters = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert any("more than 5 characters" in letter["reason"] for letter in letters)
    add(shelf, "ccc")
    run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert kept(shelf) == [(1, "a"), (2, "bb"), (3, "ccc")]


def test_the_connectors_of_the_page_work_in_real_time(run_job: Any, shelf: str, tmp_path: Path) -> None:
    """There, one thread writes an interval and another finishes it, which SQLite refuses by default."""
    bindings = {"notes": f"python:shelf:Notes?path={shelf}", "kept": f"python:shelf:Kept?path={shelf}"}
    for value in ("a", "bb"):
        add(shelf, value)
        run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"), checkpoint_interval_ms=1000)
    assert kept(shelf) == [(1, "a"), (2, "bb")]


def test_a_task_that_fails_names_the_class_and_its_replay_adds_nothing(
    run_job: Any, shelf: str, tmp_path: Path
) -> None:
    """Without its table the sink fails in a worker; once it exists, the same micro-batch is written once."""
    bindings = {
        "notes": f"python:feed:Feed?path={tmp_path / 'feed'}",
        "kept": f"python:shelf:Kept?path={shelf}",
    }
    (tmp_path / "feed").write_text('{"id": 1, "value": "a"}\n{"id": 2, "value": "b"}\n')
    with sqlite3.connect(shelf) as db:
        db.execute("CREATE TABLE kept (other INTEGER)")
    with pytest.raises(
        JobFailedError, match=r"Sink 'kept', shelf:Kept: finish failed \(OperationalError.*shelf.py, line"
    ):
        run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    with sqlite3.connect(shelf) as db:
        db.execute("DROP TABLE kept")
    run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert kept(shelf) == [(1, "a"), (2, "b")]
