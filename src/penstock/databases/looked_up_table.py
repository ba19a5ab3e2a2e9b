"""Looked-up table: finds the rows of a table of PostgreSQL by key, many with one query."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_connections import as_looked_up, is_away, open_connection
from penstock.databases.postgres_table import quote
from penstock.databases.row_json import Column, RowShape, row_json
from penstock.databases.table_catalog import (
    check_rights,
    check_shape,
    escape_percent,
    table_columns,
    table_error,
    table_indexes,
)
from penstock.errors import ExternalSystemError, PlaceMissingError
from penstock.joins.lookup_source import BETWEEN_ROWS, LookupKeys, LookupSource, Rows
from penstock.sinks.patience import Patience

__all__ = ["PostgresLookup", "check_lookup"]

# Also keeps the memory of a query small.
_KEYS_PER_QUERY: Final = 10_000
_KEYS_PER_ROW: Final = 1000
_TABLES: Final = ("r", "p", "m")
_VIEWS: Final = ("v", "f")


@dataclass(frozen=True)
class _KeyType:
    """The type of keys in a query, and the types of the columns that they are compared with."""

    sql: str
    kinds: tuple[str, ...]


_INTEGER: Final = _KeyType("int8", ("int2", "int4", "int8"))
_TEXT: Final = _KeyType("text", ("text", "varchar"))
_UUID: Final = _KeyType("uuid", ("uuid",))
_UUID_TEXT: Final = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class _OpenTable:
    """A connection, the query for rows, and the type of each field of the keys in it."""

    connection: Any
    query: str
    kinds: Sequence[_KeyType]


# By process and place; a worker asks from one thread at a time.
_open: Final[dict[tuple[Any, ...], _OpenTable]] = {}


@dataclass(frozen=True)
class PostgresLookup(LookupSource):
    """A table of PostgreSQL in which rows are found by key, and the fields that are read of a row."""

    binding: PostgresBinding
    schema: pa.Schema

    @classmethod
    def of(cls, binding: PostgresBinding, schema: pa.Schema) -> PostgresLookup:
        """Return the table of a binding."""
        names = ",".join(f"{field.name} {field.type}" for field in schema)
        return cls(
            binding.stream, f"{binding.uri}#{names}", binding.cache_s, binding.cache_rows, binding, schema
        )

    def check(self, fields: Sequence[str]) -> None:
        """Check that the table answers, can be read, and has one row for each key."""
        connection = open_connection(self.binding, f"penstock {self.table}")
        with connection, as_looked_up(self.binding):
            check_lookup(connection, self.binding, self.schema, fields)

    def find(self, fields: Sequence[str], keys: LookupKeys) -> list[Rows]:
        """Return the rows that each key has now. A query is repeated while the server is away."""
        found: list[Rows] = []
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            part = keys.part(start, _KEYS_PER_QUERY)
            patience = Patience(self.binding.retry_s)
            while True:
                try:
                    found += self._find(tuple(fields), part)
                    break
                except ExternalSystemError as e:
                    _close(self._place(tuple(fields)))
                    if not is_away(e) or not patience.rest(has_progressed=False):
                        raise
        return found

    def _find(self, fields: tuple[str, ...], keys: LookupKeys) -> list[Rows]:
        place = self._place(fields)
        opened = _open.get(place)
        if opened is None:
            opened = _open[place] = self._opened(fields)
        found = [""] * len(keys)
        numbers = _may_be_there(keys, opened.kinds)
        arrays = [_array(column[number] for number in numbers) for column in keys.columns]
        with as_looked_up(self.binding):
            for places, rows in opened.connection.execute(opened.query, arrays).fetchall():
                for number, row in zip(places, rows.split(BETWEEN_ROWS), strict=True):
                    key = numbers[number - 1]
                    found[key] = f"{found[key]}{BETWEEN_ROWS}{row}" if found[key] else row
        return found

    def _opened(self, fields: tuple[str, ...]) -> _OpenTable:
        connection = open_connection(self.binding, f"penstock {self.table}")
        try:
            with as_looked_up(self.binding):
                connection.autocommit = True
                # A lock on the table must not hold up a job forever.
                connection.execute("SET statement_timeout TO '60s'")
                columns = check_lookup(connection, self.binding, self.schema, fields)
        except BaseException:
            connection.close()
            raise
        kinds = [_key_type(self.binding, columns[name], self.schema.field(name).type) for name in fields]
        return _OpenTable(connection, self._query(fields, columns, kinds), kinds)

    def _query(self, fields: Sequence[str], columns: Mapping[str, Column], kinds: Sequence[_KeyType]) -> str:
        """Return a query that has an array of keys for each field.

        Its rows are few: each has the numbers of some keys, and the rows of the table for each. The server packs them
        faster than the client unpacks single rows, and none of them is larger than a text can be.
        """
        lists = ", ".join(f"%s::{kind.sql}[]" for kind in kinds)
        names = [f"k{number}" for number in range(len(fields))]
        equal = " AND ".join(
            f"{escape_percent(columns[field].sql)} = k.{name}"
            for field, name in zip(fields, names, strict=True)
        )
        table = escape_percent(quote(self.binding.schema, self.binding.table))
        row = escape_percent(row_json(RowShape(self.schema), columns))
        return (
            f"SELECT array_agg(k.n), string_agg({row}, chr({ord(BETWEEN_ROWS)})) "
            f"FROM unnest({lists}) WITH ORDINALITY AS k ({', '.join(names)}, n) "
            f"JOIN {table} AS t ON {equal} GROUP BY (k.n - 1) / {_KEYS_PER_ROW}"
        )

    def _place(self, fields: tuple[str, ...]) -> tuple[Any, ...]:
        return os.getpid(), self.place, fields


def _close(place: tuple[Any, ...]) -> None:
    opened = _open.pop(place, None)
    if opened is not None:
        opened.connection.close()


def check_lookup(
    connection: Any, binding: PostgresBinding, schema: pa.Schema, fields: Sequence[str]
) -> Mapping[str, Column]:
    """Check that rows of a table can be found by some fields, and return its columns.

    Raises PlaceMissingError when the table does not exist, and BindingError, each with the remedy.
    """
    found = connection.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND has_schema_privilege(n.oid, 'USAGE')",
        (binding.schema, binding.table),
    ).fetchone()
    if found is None or found[1] not in (*_TABLES, *_VIEWS):
        raise PlaceMissingError(
            f"Lookup table {binding.stream!r}: {binding.place} does not exist, or its user may not use its schema. "
            "Create it, or correct the URI."
        )
    relation, kind = found
    columns = table_columns(connection, relation)
    check_shape(binding, RowShape(schema), columns)
    check_rights(connection, binding, relation, set(schema.names))
    for name in fields:
        _key_type(binding, columns[name], schema.field(name).type)
    is_unique = any(
        index.is_unique and set(index.columns) <= set(fields) for index in table_indexes(connection, relation)
    )
    if fields and kind in _TABLES and not is_unique:
        table, names = quote(binding.schema, binding.table), ", ".join(map(quote, fields))
        raise table_error(
            binding,
            f"may have several rows for a key, {', '.join(fields)}, and a record is joined with one",
            f"Run: CREATE UNIQUE INDEX ON {table} ({names})",
        )
    return columns


def _key_type(binding: PostgresBinding, column: Column, kind: pa.DataType) -> _KeyType:
    """Return the type of a key in queries. Raises BindingError when a column cannot be compared with its field."""
    if pa.types.is_integer(kind):
        known = [_INTEGER]
    elif pa.types.is_string(kind):
        known = [_TEXT, _UUID]
    elif pa.types.is_boolean(kind):
        known = [_KeyType("bool", ("bool",))]
    elif pa.types.is_date(kind):
        known = [_KeyType("date", ("date",))]
    elif pa.types.is_timestamp(kind):
        known = [_KeyType("timestamptz", ("timestamptz",))]
    elif pa.types.is_decimal(kind):
        known = [_KeyType("numeric", ("numeric",))]
    else:
        known = []
    found = next((one for one in known if column.kind in one.kinds), None)
    if found is None:
        takes = " or ".join(name for one in known for name in one.kinds)
        remedy = f"Look up by a column of {takes}" if takes else "Look up by another field"
        raise table_error(
            binding,
            f"is to be looked up by {column.name}, which is {column.sql_type}, with keys of {kind}",
            remedy,
        )
    return found


def _may_be_there(keys: LookupKeys, kinds: Sequence[_KeyType]) -> Sequence[int]:
    """Return the numbers of the keys that a table may have.

    A key that PostgreSQL does not take as a value of the type is in no table.
    """
    found: Sequence[int] = range(len(keys))
    for column, kind in zip(keys.columns, kinds, strict=True):
        if kind is _UUID:
            found = [number for number in found if _UUID_TEXT.fullmatch(column[number])]
        elif kind is _TEXT and "\0" in "".join(column):
            found = [number for number in found if "\0" not in column[number]]
    return found


def _array(values: Iterable[Any]) -> str:
    r"""Return the values of keys as an array of PostgreSQL, made of few operations on the text of all.

    >>> print(_array(['a', 'b"c', 'back\\slash', 'x,{y}', '']), _array([1, -2]), _array([]))
    {"a","b\"c","back\\slash","x,{y}",""} {"1","-2"} {}
    """
    texts = [value if isinstance(value, str) else str(value) for value in values]
    if not texts:
        return "{}"
    # No table has texts with a NUL, so none is here.
    joined = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{joined}"}}'
