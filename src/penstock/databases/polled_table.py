"""Polled table: checks that a table can be read in the order of a column, and the statements that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_table import quote
from penstock.databases.row_json import Column, RowShape, row_json
from penstock.databases.table_catalog import (
    TableIndex,
    check_rights,
    check_shape,
    escape_percent,
    table_columns,
    table_error,
    table_indexes,
)
from penstock.errors import PlaceMissingError

__all__ = ["PolledTable", "polled_table"]

_INTEGERS: Final = ("int2", "int4", "int8")
_TIMES: Final = ("timestamp", "timestamptz")
_DELAY_S: Final = 1


@dataclass(frozen=True)
class PolledTable:
    """A table whose rows are read in the order of its `key`: a growing column, and tie-breakers for equal values.

    `writes` are the relations that a transaction has locked when it may still add rows at or before the newest one; it
    is None for times, which any transaction may have taken. Without `is_indexed` each query reads the whole table.
    """

    name: str
    key: tuple[str, ...]
    row: str
    condition: str
    writes: tuple[int, ...] | None
    is_indexed: bool

    @property
    def newest(self) -> str:
        """The query for the greatest key that may be read."""
        return f"{self._select('')} ORDER BY {self._order(' DESC')} LIMIT 1"

    @property
    def newest_after(self) -> str:
        """The same, if it is beyond a key; its parameters are the values of that key."""
        return f"{self._select(f' AND {self._beyond}')} ORDER BY {self._order(' DESC')} LIMIT 1"

    def page(self, *, after: bool) -> str:
        """The query for rows, each with its key; its parameters are the key that it is after, the last, a limit."""
        beyond = f" AND {self._beyond}" if after else ""
        until = f" AND ({self._order()}) <= ({', '.join(['%s'] * len(self.key))})"
        keys = ", ".join(f"t.{name}::text" for name in self._columns)
        where = f"{self.condition}{beyond}{until}"
        row = escape_percent(self.row)
        return f"SELECT {row}, {keys} FROM {self._table} WHERE {where} ORDER BY {self._order()} LIMIT %s"

    @property
    def _columns(self) -> list[str]:
        return [escape_percent(quote(name)) for name in self.key]

    @property
    def _table(self) -> str:
        return f"{escape_percent(self.name)} AS t"

    @property
    def _beyond(self) -> str:
        return f"({self._order()}) > ({', '.join(['%s'] * len(self.key))})"

    def _order(self, direction: str = "") -> str:
        return ", ".join(f"t.{name}{direction}" for name in self._columns)

    def _select(self, more: str) -> str:
        keys = ", ".join(f"t.{name}::text" for name in self._columns)
        return f"SELECT {keys} FROM {self._table} WHERE {self.condition}{more}"


def polled_table(connection: Any, binding: PostgresBinding, shape: RowShape) -> PolledTable:
    """Check that rows of a table can be read in the order of a column, and return how.

    Raises PlaceMissingError when the table does not exist, and BindingError, each with the remedy.
    """
    assert binding.poll_by is not None, "the URI of a source has it"
    relation = _relation(connection, binding)
    columns = table_columns(connection, relation)
    column = columns.get(binding.poll_by)
    if column is None:
        raise table_error(
            binding,
            f"has no column {binding.poll_by}, by which it is to be read; it has {', '.join(columns)}",
            "Correct poll_by in the URI",
        )
    check_shape(binding, shape, columns)
    indexes = table_indexes(connection, relation)
    sequences = _sequences(connection, binding, relation)
    key = (binding.poll_by, *_tie_breakers(binding, column, indexes, has_sequence=bool(sequences)))
    check_rights(connection, binding, relation, {*key, *(set(shape.schema.names) & set(columns))})
    return PolledTable(
        name=quote(binding.schema, binding.table),
        key=key,
        row=row_json(shape, columns),
        condition=_condition(binding, column),
        writes=(relation, *sequences) if column.kind in _INTEGERS else None,
        is_indexed=any(index.columns[:1] == key[:1] for index in indexes),
    )


def _relation(connection: Any, binding: PostgresBinding) -> int:
    """Return the id of the table."""
    found = connection.execute(
        "SELECT c.oid, c.relkind::text, pg_is_in_recovery() FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND has_schema_privilege(n.oid, 'USAGE')",
        (binding.schema, binding.table),
    ).fetchone()
    if found is None:
        raise PlaceMissingError(
            f"Stream {binding.stream!r}: {binding.place} does not exist, or its user may not use its schema. Create "
            "it, or correct the URI."
        )
    relation, kind, is_replica = found
    if kind not in ("r", "p"):
        raise table_error(
            binding,
            "is a view, or not a table of this database, so nobody knows which rows may still be added to it",
            "Bind the stream to the table behind it",
        )
    if is_replica:
        raise table_error(
            binding,
            "is on a replica, which does not know the open transactions of its primary",
            "Name the primary in the URI",
        )
    return int(relation)


def _sequences(connection: Any, binding: PostgresBinding, relation: int) -> list[int]:
    """Return the sequences of the column. Raises BindingError for one whose values do not grow."""
    rows = connection.execute(
        "SELECT s.seqrelid, s.seqrelid::regclass::text, s.seqcache, s.seqincrement > 0 AND NOT s.seqcycle "
        "FROM pg_sequence s, pg_attribute a WHERE a.attrelid = %s AND a.attname = %s AND (EXISTS ("
        "SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid "
        "AND d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum"
        ") OR EXISTS (SELECT FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid "
        "WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass "
        "AND d.refobjid = s.seqrelid AND f.adrelid = a.attrelid AND f.adnum = a.attnum))",
        (relation, binding.poll_by),
    ).fetchall()
    for _, name, cache, grows in rows:
        if cache > 1 or not grows:
            raise table_error(
                binding,
                f"has values of {binding.poll_by} from the sequence {name}, which do not grow from row to row",
                f"Run: ALTER SEQUENCE {name} CACHE 1 NO CYCLE INCREMENT BY 1",
            )
    return [int(row[0]) for row in rows]


def _tie_breakers(
    binding: PostgresBinding, column: Column, indexes: Sequence[TableIndex], *, has_sequence: bool
) -> tuple[str, ...]:
    """Return the columns that tell rows with equal values apart."""
    table, name = quote(binding.schema, binding.table), quote(column.name)
    if column.kind not in (*_INTEGERS, *_TIMES):
        raise table_error(
            binding,
            f"has {column.name} of the type {column.sql_type}, and is read by an integer, timestamp or timestamptz",
            "Name another column in poll_by",
        )
    if column.kind in _INTEGERS and binding.poll_delay_s is not None:
        raise table_error(
            binding, f"is read by {column.name}, which has no times", "Remove poll_delay_s from the URI"
        )
    if any(index.is_unique and index.columns == (column.name,) for index in indexes):
        return ()
    if column.kind in _INTEGERS and not has_sequence:
        raise table_error(
            binding,
            f"may have the same {column.name} in several rows, so one that comes later would not be found",
            f"Run: CREATE UNIQUE INDEX ON {table} ({name})",
        )
    primary = next((index.columns for index in indexes if index.is_primary), None)
    if primary is None:
        raise table_error(
            binding,
            f"may have the same {column.name} in several rows, and no primary key tells them apart",
            "Give it one",
        )
    return tuple(other for other in primary if other != column.name)


def _condition(binding: PostgresBinding, column: Column) -> str:
    name = escape_percent(column.sql)
    if column.kind in _INTEGERS:
        return f"{name} IS NOT NULL"
    # Behind times are those of the transactions that take them now; and a time may have been rounded up.
    delay = f"interval '{binding.poll_delay_s or _DELAY_S} seconds'"
    now = "now()" if column.kind == "timestamptz" else "(now() AT TIME ZONE 'UTC')"
    return f"{name} <= {now} - {delay}"
