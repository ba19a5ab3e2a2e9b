"""Open writers: the transactions that may still add a row at or before one that has been seen.

A row gets its number when it is inserted, and others see it when its transaction commits, so rows do not appear in the
order of their numbers. But a transaction that has taken a number holds a lock on the table or on the sequence until it
ends. So once those that held one when the newest row was seen have ended, no row at or before that one can appear.

Times are mostly those of the begin of a transaction, when it holds no lock yet. For them all transactions of the
database count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.databases.polled_table import PolledTable

__all__ = ["OpenWriters", "still_open"]

_WRITING: Final = (
    "WITH RECURSIVE tree AS (SELECT unnest(%s::oid[]) AS id "
    "UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = id) "
    "SELECT DISTINCT virtualtransaction, pid FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' "
    "AND granted AND relation IN (SELECT id FROM tree) "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# Prepared transactions have no process. Sessions of the server itself, such as autovacuum, have no user.
_ALL: Final = (
    "SELECT DISTINCT virtualtransaction, pid FROM pg_locks l WHERE (pid IS NULL OR "
    "(locktype = 'virtualxid' AND mode = 'ExclusiveLock' AND pid <> pg_backend_pid())) "
    "AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = l.pid "
    "AND (a.datname IS DISTINCT FROM current_database() OR a.usesysid IS NULL))"
)


class OpenWriters:
    """The transactions that were open when this was made, until they have ended.

    Args:
        connection: one without an open transaction, so that each query sees changes.
        table: the relations to which they may write.

    """

    def __init__(self, connection: Any, table: PolledTable) -> None:
        self._connection = connection
        self._table = table
        self._waiting = self._open()
        self._seen = set(self._waiting)

    @property
    def processes(self) -> list[int]:
        """The processes of those that are still open; prepared transactions have none."""
        return sorted(pid for pid in self._waiting.values() if pid is not None)

    def have_ended(self) -> bool:
        """Return whether all of them have ended."""
        if self._waiting:
            self._waiting = still_open(self._waiting, self._seen, self._open())
            self._seen.update(self._waiting)
        return not self._waiting

    def _open(self) -> dict[str, int | None]:
        writes = self._table.writes
        if writes is None:
            return dict(self._connection.execute(_ALL).fetchall())
        return dict(self._connection.execute(_WRITING, (list(writes),)).fetchall())


def still_open(
    awaited: Mapping[str, int | None], seen: Collection[str], now: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return which of the transactions that are open now are awaited, by name, with their processes.

    A transaction that is prepared gets another name and has no process, so a prepared one that was not `seen` may be
    one of the awaited.

    >>> still_open({"3/1": 10, "4/1": 11}, {"3/1", "4/1"}, {"3/1": 10, "5/1": 12, "-1/700": None})
    {'3/1': 10, '-1/700': None}
    """
    return {name: pid for name, pid in now.items() if name in awaited or (pid is None and name not in seen)}
