"""Jobs with user-defined connectors: each keeps the guarantee that its class declares, whatever is killed."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from guide_code import PAGE_OF_CONNECTORS, code_of
from journal_checks import JournalCheck
from reliability import noting
from sink_kills import BUSY_S, KilledSink, victims
from steady_feed import feed_steadily

from penstock.jobs.settings import RunSettings

HERE = Path(__file__).parent
ROWS = 20
POST = ("letters", "parcels")


class Shelf:
    """The databases of the sources and the sinks, beside a job file and its connector classes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.job = folder / "shelf_job.py"
        shutil.copy(HERE / "shelf_job.py", self.job)
        shutil.copy(HERE / "shelf_post.py", folder)
        (folder / "shelf.py").write_text(code_of(PAGE_OF_CONNECTORS, "shelf.py"))
        self.rounds = 0
        with closing(self._connect("source")) as db:
            for table in ("notes", *POST):
                db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")

    def settings(self, **settings: Any) -> RunSettings:
        source, kept, counted = (self._folder / f"{name}.db" for name in ("source", "kept", "counted"))
        bindings = {
            "notes": f"python:shelf:Notes?path={source}",
            "letters": f"python:shelf_post:Letters?path={source}",
            "parcels": f"python:shelf_post:Parcels?path={source}",
            "kept": f"python:shelf:Kept?path={kept}",
            "counted": f"python:shelf:Kept?path={counted}",
        }
        return RunSettings(
            bindings=bindings, checkpoint=str(self._folder / "checkpoint"), parallelism=2, **settings
        )

    def write(self) -> None:
        """Add rows to all sources in one transaction."""
        with closing(self._connect("source")) as db, db:
            notes = [{"id": self.rounds * ROWS + row, "value": "tea"} for row in range(ROWS)]
            self._insert(db, "notes", notes)
            for table in POST:
                hits = [{"page": f"{table}{row}", "number": self.rounds} for row in range(ROWS)]
                self._insert(db, table, hits)
        self.rounds += 1

    def feeding(self) -> AbstractContextManager[None]:
        """Add rows at intervals while the block runs."""
        return feed_steadily(self.write, 0.2)

    def rows(self, sink: str) -> list[tuple[int, str]]:
        """Return the ids and values in a sink."""
        with closing(self._connect(sink)) as db:
            return db.execute("SELECT id, value FROM kept").fetchall()

    def parcels_left(self) -> int:
        """Return how many parcels were not acknowledged."""
        with closing(self._connect("source")) as db:
            return int(db.execute("SELECT count(*) FROM parcels").fetchone()[0])

    def _connect(self, name: str) -> sqlite3.Connection:
        return sqlite3.connect(self._folder / f"{name}.db", timeout=30)

    @staticmethod
    def _insert(db: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
        db.executemany(f"INSERT INTO {table} (body) VALUES (?)", [(json.dumps(row),) for row in rows])


def check(shelf: Shelf, journals: JournalCheck) -> None:
    """Check that each note and letter is there once, each parcel at least once, and each journaled record
    counted once.
    """
    assert sorted(shelf.rows("kept")) == [(number, "tea") for number in range(shelf.rounds * ROWS)]
    counted = [(number, value.partition(" ")) for number, value in shelf.rows("counted")]
    journals.check_counted((page, number, int(count)) for number, (page, _, count) in counted)
    sent = [(row, number) for number in range(shelf.rounds) for row in range(ROWS)]
    assert journals.hits("letters") == [(f"letters{row}", number) for row, number in sent]
    assert set(journals.hits("parcels")) == {(f"parcels{row}", number) for row, number in sent}
    assert shelf.parcels_left() == 0


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_with_custom_connectors(tmp_path: Path, interval_ms: int) -> None:
    """Twenty kills in each mode, under load: a log, receivers with positions and with acknowledgements, and
    sinks.
    """
    seed = 42 if interval_ms else 41
    mode = "real time" if interval_ms else "micro-batches"
    shelf = Shelf(tmp_path)
    shelf.write()
    journals = JournalCheck(tmp_path / "checkpoint", POST)
    settings = partial(shelf.settings, checkpoint_interval_ms=interval_ms)
    with noting("custom connectors", "-k kills_of_a_job_with_custom_connectors", str(seed)) as injected:

        def note(victim: str) -> None:
            journals.look()
            injected.add(f"{victim} of a job with custom connectors in {mode}")

        KilledSink(tmp_path, shelf, settings, job=shelf.job, patience_s=BUSY_S).survive(
            victims(None, 20), random.Random(seed), note
        )
        check(shelf, journals)
