"""User-defined receivers for `shelf_job.py`: one with positions, and one whose source deletes acknowledged
records.
"""

from __future__ import annotations

import sqlite3

from penstock.connectors import Received, RecordReceiver


class Letters(RecordReceiver):
    """The rows of a table after the last id in the journal."""

    guarantee = "each record once"

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self, after: str | None) -> None:
        self._db = sqlite3.connect(self._path, timeout=30)
        self._after = int(after or 0)

    def receive(self, wait_s: float) -> Received | None:
        query = "SELECT id, body FROM letters WHERE id > ? ORDER BY id LIMIT 100"
        rows = self._db.execute(query, (self._after,)).fetchall()
        if not rows:
            return None
        self._after = rows[-1][0]
        return Received([body for _, body in rows], str(self._after))

    def close(self) -> None:
        self._db.close()


class Parcels(RecordReceiver):
    """The rows of a table, which are deleted once acknowledged."""

    guarantee = "at least once"

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self, after: str | None) -> None:
        assert after is None
        self._db = sqlite3.connect(self._path, timeout=30)
        self._last = 0

    def receive(self, wait_s: float) -> Received | None:
        query = "SELECT id, body FROM parcels WHERE id > ? ORDER BY id LIMIT 100"
        rows = self._db.execute(query, (self._last,)).fetchall()
        if not rows:
            return None
        self._last = rows[-1][0]
        return _Parcels([body for _, body in rows], last=self._last)

    def acknowledge(self, received: Received) -> None:
        assert isinstance(received, _Parcels)
        with self._db:
            self._db.execute("DELETE FROM parcels WHERE id <= ?", (received.last,))

    def close(self) -> None:
        self._db.close()


class _Parcels(Received):
    """Parcels, and the id of the last one."""

    def __init__(self, records: list[str], last: int) -> None:
        super().__init__(records)
        object.__setattr__(self, "last", last)

    last: int
