"""Table receiver: journals the rows of a table in the order of a growing column, each with its place in that order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from penstock.bindings.types import PostgresBinding
from penstock.databases.open_writers import OpenWriters
from penstock.databases.polled_table import PolledTable, polled_table
from penstock.databases.postgres_connections import as_unread, open_connection
from penstock.databases.row_json import RowShape
from penstock.errors import BindingError
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import MAX_BYTES, Receiver

__all__ = ["TableReceiver", "check_table"]

_log: Final = logging.getLogger("penstock.sources")
_FETCHED_ROWS: Final = 1000
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
_QUIET_S: Final = 10.0


class _Place(msgspec.Struct, frozen=True):
    """A place in the order of a table: the columns of the order, and their values in a row; None before the first."""

    table: str
    by: tuple[str, ...]
    at: tuple[str, ...] | None


def check_table(binding: PostgresBinding, shape: RowShape) -> None:
    """Check that the server answers, and that the table can be read.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    with _TableConnection(binding, shape):
        pass


class _TableConnection(AbstractContextManager["_TableConnection"]):
    """A connection without a transaction, and the table."""

    def __init__(self, binding: PostgresBinding, shape: RowShape) -> None:
        self.connection = open_connection(binding, f"penstock {binding.stream}")
        try:
            with as_unread(binding):
                self.connection.autocommit = True
                self.table: PolledTable = polled_table(self.connection, binding, shape)
        except BaseException:
            self.connection.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.connection.close()


class TableReceiver(Receiver[_TableConnection]):
    """A receiver of the rows of a table, as JSON.

    The journal holds the place of the last row of each block, after which reading resumes after a restart, so it has
    each row once. A bounded run ends with the row that was the last when the connection was made.
    """

    def __init__(
        self, binding: PostgresBinding, shape: RowShape, journal: JournalWriter, *, bounded: bool = False
    ) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        self._shape = shape
        self._place = _last_place(journal.notes())

    def _connect(self) -> _TableConnection:
        opened = _TableConnection(self._binding, self._shape)
        try:
            self._check_order(opened.table)
            if self._place is None:
                # From now on the job counts as started, and no row that comes may be missed.
                with as_unread(self._binding):
                    self._begin(opened)
        except BaseException:
            opened.connection.close()
            raise
        return opened

    def _check_order(self, table: PolledTable) -> None:
        if self._place is not None and (self._place.table, self._place.by) != (table.name, table.key):
            raise BindingError(
                f"Stream {self._stream!r}: the checkpoint has read {self._place.table} by {', '.join(self._place.by)}, "
                f"and would continue in {table.name} by {', '.join(table.key)}. Correct the URI, or give the stream "
                "another name in the job."
            )
        if not table.is_indexed:
            _log.warning(
                "Stream %r: no index of %s begins with %s, so the whole table is read at each poll. Create one.",
                self._stream,
                table.name,
                table.key[0],
                extra={"stream": self._stream},
            )

    def _receive(self, opened: _TableConnection) -> None:
        with as_unread(self._binding):
            while not self._stopping.is_set():
                newest = self._newest(opened)
                if newest is not None and self._await_writers(opened):
                    self._read(opened, newest)
                if self._bounded or self._stopping.wait(self._binding.poll_s):
                    return

    def _begin(self, opened: _TableConnection) -> None:
        """Keep the start, so that rows that come before the first is journaled are not skipped."""
        at = None
        if self._binding.start == "latest":
            at = opened.connection.execute(opened.table.newest, ()).fetchone()
        self._keep(opened.table, at, [])

    def _newest(self, opened: _TableConnection) -> Sequence[str] | None:
        """Return the place of the last row if it is after the rows in the journal."""
        assert self._place is not None
        query = opened.table.newest if self._place.at is None else opened.table.newest_after
        found: Sequence[str] | None = opened.connection.execute(query, self._place.at or ()).fetchone()
        return found

    def _await_writers(self, opened: _TableConnection) -> bool:
        """Wait until no row can appear any more before the newest; return False if the receiver stops before that."""
        writers = OpenWriters(opened.connection, opened.table)
        began_s, pause_s, warned = time.monotonic(), _FIRST_PAUSE_S, False
        while not writers.have_ended():
            if not warned and time.monotonic() > began_s + _QUIET_S:
                warned = True
                _log.warning(
                    "Stream %r: %s is read on when the transactions of the sessions %s have ended; until then they may "
                    "add rows before the newest.",
                    self._stream,
                    opened.table.name,
                    ", ".join(map(str, writers.processes)) or "that are prepared",
                    extra={"stream": self._stream},
                )
            if self._stopping.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _read(self, opened: _TableConnection, newest: Sequence[str]) -> None:
        """Journal the rows up to a place, a page at a time."""
        limit, count = self._binding.max_records_per_poll, 0
        while not self._stopping.is_set():
            assert self._place is not None
            at = self._place.at or ()
            # Each page is read in a separate transaction, so that reading a large table does not hold up the server's
            # vacuum.
            with opened.connection.transaction(), opened.connection.cursor("page") as page:
                page.execute(opened.table.page(after=bool(at)), (*at, *newest, limit))
                count = self._journal_page(opened.table, page)
            if count < limit:
                return

    def _journal_page(self, table: PolledTable, page: Any) -> int:
        count, size = 0, 0
        records: list[bytes] = []
        at: Sequence[str] = ()
        while rows := page.fetchmany(_FETCHED_ROWS):
            found = [row[0].encode() for row in rows]
            at = rows[-1][1:]
            records += found
            size += sum(map(len, found))
            count += len(rows)
            if size >= MAX_BYTES:
                self._keep(table, at, records)
                records, size = [], 0
        if records:
            self._keep(table, at, records)
        return count

    def _keep(self, table: PolledTable, at: Sequence[str] | None, records: Sequence[bytes]) -> None:
        """Make records durable, with the place of the last."""
        place = _Place(table.name, table.key, None if at is None else tuple(at))
        self._journal.append(records, msgspec.json.encode(place))
        self._place = place


def _last_place(notes: Iterable[bytes]) -> _Place | None:
    note = next(iter(notes), None)
    return None if note is None else msgspec.json.decode(note, type=_Place)
