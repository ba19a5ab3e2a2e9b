"""Row view: the tables of a store in a file of this process, which captures the rows that a transaction changes.

The file may be lost at any time: it is rebuilt from the change log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from penstock.errors import StoreError
from penstock.server.store.change_log import Change, Rows, Snapshot
from penstock.server.store.database import METADATA
from penstock.server.store.engine import connect, reading, sqlite_url, writing

__all__ = ["RowView"]

_TOUCHED: Final = sa.table("touched", sa.column("name"), sa.column("key"))
# Without types, values are those of SQLite.
_TABLES: Final = {
    table.name: sa.table(table.name, *(sa.column(column.name) for column in table.columns))
    for table in METADATA.sorted_tables
}


class RowView:
    """The tables in a new file. Readers see the last transaction that has ended, whatever is being written."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._engine: Final = connect(sqlite_url(path))
        # From here on each connection captures its changes.
        self._engine.dispose()
        sa.event.listen(self._engine, "connect", _prepare)
        with self.reading() as connection:
            self.revision: Final[str] = connection.execute(
                sa.text("SELECT version_num FROM alembic_version")
            ).scalar_one()

    def close(self) -> None:
        """Close all connections, and remove the file. Those that read continue."""
        self._engine.dispose()
        for end in ("", "-wal", "-shm"):
            Path(f"{self._path}{end}").unlink(missing_ok=True)

    def reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Open a transaction that only reads."""
        return reading(self._engine)

    def writing(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Open a transaction whose changes `touched_rows` returns."""
        return writing(self._engine)

    def touched_rows(self, connection: sa.Connection) -> tuple[Rows, Rows]:
        """Return the rows that a transaction has changed so far, and the keys of those that it has deleted."""
        rows: Rows = {}
        gone: Rows = {}
        query = (
            sa.select(_TOUCHED.c.name, _TOUCHED.c.key).distinct().order_by(_TOUCHED.c.name, _TOUCHED.c.key)
        )
        touched = connection.execute(query).all()
        connection.execute(_TOUCHED.delete())
        for name, encoded in touched:
            key = msgspec.json.decode(encoded, type=dict[str, int | str])
            table = _TABLES[name]
            row = (
                connection.execute(
                    sa.select(table).where(*(table.c[column] == value for column, value in key.items()))
                )
                .mappings()
                .one_or_none()
            )
            if row is None:
                gone.setdefault(name, []).append(dict(key))
            else:
                rows.setdefault(name, []).append(_as_dict(row))
        return rows, gone

    def apply(self, changes: Sequence[Change | Snapshot]) -> None:
        """Apply changes in their order, in one transaction. Raises StoreError if they are of another version."""
        with writing(self._engine) as connection:
            for change in changes:
                if change.revision != self.revision:
                    raise StoreError(
                        f"The store was used by another version of penstock (its tables are {change.revision}, not "
                        f"{self.revision}). Use the newest version that has used it, or another store."
                    )
                # A row may come before the one to which it refers.
                connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
                _apply(connection, change.rows, change.gone if isinstance(change, Change) else {})
            connection.execute(_TOUCHED.delete())

    def all_rows(self) -> Rows:
        """Return the rows of all tables."""
        with self.reading() as connection:
            return {
                name: [_as_dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for name, table in _TABLES.items()
            }


def _prepare(connection: Any, _: Any) -> None:
    """Make a connection note the keys of the rows that it touches. What it notes belongs to its transaction."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("CREATE TABLE temp.touched (name TEXT, key TEXT)")
    for name in _TABLES:
        for event, rows in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
            notes = " ".join(_note(name, row) for row in rows)
            connection.execute(
                f"CREATE TEMP TRIGGER {name}_{event} AFTER {event} ON main.{name} BEGIN {notes} END"
            )


def _note(name: str, row: str) -> str:
    key = ", ".join(f"'{column}', {row}.{column}" for column in _keys(name))
    return f"INSERT INTO touched VALUES ('{name}', json_object({key}));"  # noqa: S608  # names of our own tables


def _apply(connection: sa.Connection, rows: Rows, gone: Rows) -> None:
    # Two rows may exchange a value that only one may have, so that all old ones go first.
    for name, found in (*gone.items(), *rows.items()):
        table, keys = _table(name), _keys(name)
        old = [{f"key_{key}": row.get(key) for key in keys} for row in found]
        if old:
            same = [table.c[key] == sa.bindparam(f"key_{key}") for key in keys]
            connection.execute(table.delete().where(*same), old)
    for name, found in rows.items():
        table = _table(name)
        if any(set(row) != set(table.c.keys()) for row in found):
            raise StoreError(
                f"The store has rows of {name} with other columns than this version of penstock."
            )
        if found:
            connection.execute(table.insert(), found)


def _table(name: str) -> sa.TableClause:
    if name not in _TABLES:
        raise StoreError(f"The store has a table {name!r}, which this version of penstock does not know.")
    return _TABLES[name]


def _keys(name: str) -> list[str]:
    return [column.name for column in METADATA.tables[name].primary_key.columns]


def _as_dict(row: sa.RowMapping) -> dict[str, int | str | None]:
    return {str(name): value for name, value in row.items()}
