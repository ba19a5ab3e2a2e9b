"""Row JSON: the SQL that makes a row the JSON of a record, and which columns fit which fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.databases.postgres_table import quote

__all__ = ["COMMAND_ROWS", "Column", "RowShape", "row_json", "unfit_columns"]

_NUMBERS: Final = ("int2", "int4", "int8", "numeric")
_DOCUMENTS: Final = ("json", "jsonb")


@dataclass(frozen=True)
class Column:
    """A column of a table: its type as SQL, the name of that type in the catalog, and the type's category."""

    name: str
    sql_type: str
    kind: str
    category: str

    @property
    def sql(self) -> str:
        """The column of the table `t`."""
        return f"t.{quote(self.name)}"


@dataclass(frozen=True)
class RowShape:
    """The fields read of a row. If it `is_sparse`, the table may lack nullable fields, and nulls are left out."""

    schema: pa.Schema
    is_sparse: bool = False

    def missing(self, columns: Mapping[str, Column]) -> list[str]:
        """Return the fields that the table lacks."""
        return [
            field.name
            for field in self.schema
            if field.name not in columns and not (self.is_sparse and field.nullable)
        ]


_DOCUMENT: Final = pa.struct([])
COMMAND_ROWS: Final = RowShape(
    pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            ("target", _DOCUMENT),
            ("version", pa.int64()),
            ("issued_by", pa.string()),
            ("issued_at", pa.timestamp("us", "UTC")),
            ("effective_at", pa.timestamp("us", "UTC")),
            ("expires_at", pa.timestamp("us", "UTC")),
            ("apply", pa.string()),
            ("payload", _DOCUMENT),
        ]
    ),
    is_sparse=True,
)
"""The rows of a table of commands: the fields of a command, of which it may lack most."""


@dataclass(frozen=True)
class _Reading:
    """How fields of one kind are read: the columns that fit, in words and by a check, and the SQL of the value."""

    holds: Callable[[pa.DataType], bool]
    columns: str
    fits: Callable[[Column], bool]
    sql: str = "{}"


def _is_one_of(*kinds: str) -> Callable[[Column], bool]:
    return lambda column: column.kind in kinds


def _is_list(column: Column) -> bool:
    # The JSON of an array has bytes in hexadecimal digits, which no record has.
    return column.kind in _DOCUMENTS or (column.category == "A" and column.kind != "_bytea")


def _is_record(column: Column) -> bool:
    return column.kind in _DOCUMENTS or column.category == "C"


_READINGS: Final = (
    _Reading(pa.types.is_boolean, "boolean", _is_one_of("bool")),
    _Reading(pa.types.is_integer, "an integer or numeric", _is_one_of(*_NUMBERS)),
    _Reading(pa.types.is_floating, "a number", _is_one_of(*_NUMBERS, "float4", "float8")),
    _Reading(pa.types.is_decimal, "an integer or numeric", _is_one_of(*_NUMBERS), "{}::text"),
    _Reading(pa.types.is_binary, "bytea", _is_one_of("bytea"), "replace(encode({}, 'base64'), chr(10), '')"),
    _Reading(pa.types.is_timestamp, "a timestamp", _is_one_of("timestamp", "timestamptz"), "{}::timestamptz"),
    _Reading(pa.types.is_date, "date", _is_one_of("date")),
    _Reading(pa.types.is_list, "an array, json or jsonb", _is_list),
    _Reading(pa.types.is_map, "json or jsonb", _is_one_of(*_DOCUMENTS)),
    _Reading(pa.types.is_struct, "a composite type, json or jsonb", _is_record),
    # Every type has a text.
    _Reading(lambda _: True, "any type", lambda _: True, "{}::text"),
)


def _reading(kind: pa.DataType) -> _Reading:
    return next(reading for reading in _READINGS if reading.holds(kind))


def unfit_columns(shape: RowShape, columns: Mapping[str, Column]) -> list[str]:
    """Return what is wrong with the types of columns, a clause for each.

    >>> column = Column("celsius", "character varying(9)", "varchar", "S")
    >>> unfit_columns(RowShape(pa.schema([("celsius", pa.float64())])), {"celsius": column})
    ['celsius is character varying(9), and the field takes a number']
    """
    found = [(field, columns[field.name]) for field in shape.schema if field.name in columns]
    return [
        f"{field.name} is {column.sql_type}, and the field takes {_reading(field.type).columns}"
        for field, column in found
        if not _reading(field.type).fits(column)
    ]


def row_json(shape: RowShape, columns: Mapping[str, Column]) -> str:
    """Return the SQL of the JSON text of a row of the table `t`.

    >>> row_json(RowShape(pa.schema([("n", pa.int64())])), {"n": Column("n", "bigint", "int8", "N")})
    '(SELECT row_to_json(r.*)::text FROM (SELECT t."n" AS "n") AS r)'
    """
    values: Sequence[str] = [
        f"{_reading(field.type).sql.format(columns[field.name].sql)} AS {quote(field.name)}"
        for field in shape.schema
        if field.name in columns
    ]
    # With `.*` they are rows, whatever the names of the fields are.
    row = f"(SELECT {', '.join(values)}) AS r"
    if not shape.is_sparse:
        return f"(SELECT row_to_json(r.*)::text FROM {row})"
    return (
        "(SELECT json_object_agg(e.key, e.value)::text "
        f"FROM {row}, json_each(row_to_json(r.*)) AS e WHERE json_typeof(e.value) <> 'null')"
    )
