"""Table catalog: PostgreSQL's facts about a table: its columns, its unique indexes, and whether it may be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_table import quote
from penstock.databases.row_json import Column, RowShape, unfit_columns
from penstock.errors import BindingError

__all__ = [
    "TableIndex",
    "check_rights",
    "check_shape",
    "escape_percent",
    "table_columns",
    "table_error",
    "table_indexes",
]


def table_columns(connection: Any, relation: int) -> dict[str, Column]:
    """Return the columns of a table, by name."""
    rows = connection.execute(
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), b.typname::text, b.typcategory::text "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        # Behind a domain is another type.
        "JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid) "
        "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (relation,),
    ).fetchall()
    return {row[0]: Column(*row) for row in rows}


def check_shape(binding: PostgresBinding, shape: RowShape, columns: Mapping[str, Column]) -> None:
    """Raise BindingError when a table lacks a field, or has another type for it."""
    missing = shape.missing(columns)
    if missing:
        raise table_error(
            binding,
            f"has no column {', '.join(missing)}; it has {', '.join(columns)}",
            "Add it, or take the field out of the stream's schema",
        )
    unfit = unfit_columns(shape, columns)
    if unfit:
        raise table_error(
            binding,
            f"has columns of other types than the stream's schema: {'; '.join(unfit)}",
            "Correct the schema, or read a field of text and convert it in the job",
        )


@dataclass(frozen=True)
class TableIndex:
    """A valid index of all rows, by columns alone."""

    is_primary: bool
    is_unique: bool
    columns: tuple[str, ...]


def table_indexes(connection: Any, relation: int) -> list[TableIndex]:
    """Return the indexes of all rows by columns alone."""
    rows = connection.execute(
        "SELECT i.indisprimary, i.indisunique AND i.indimmediate, ARRAY(SELECT a.attname::text "
        "FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number "
        "WHERE k.place <= i.indnkeyatts ORDER BY k.place) FROM pg_index i "
        "WHERE i.indrelid = %s AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL",
        (relation,),
    ).fetchall()
    return [TableIndex(is_primary, is_unique, tuple(names)) for is_primary, is_unique, names in rows]


def check_rights(connection: Any, binding: PostgresBinding, relation: int, names: set[str]) -> None:
    """Raise BindingError when the user may not read some columns."""
    (is_allowed,) = connection.execute(
        "SELECT bool_and(has_column_privilege(%s::oid, name, 'SELECT')) FROM unnest(%s::text[]) AS name",
        (relation, sorted(names)),
    ).fetchone()
    if not is_allowed:
        table, user = quote(binding.schema, binding.table), quote(binding.client["user"])
        raise table_error(
            binding,
            f"may not be read by the user {binding.client['user']}",
            f"Run: GRANT SELECT ON {table} TO {user}",
        )


def table_error(binding: PostgresBinding, what: str, remedy: str) -> BindingError:
    """Return the error for a table, as a sentence with a remedy."""
    return BindingError(f"Stream {binding.stream!r}: {binding.place} {what}. {remedy}.")


def escape_percent(sql: str) -> str:
    """Return SQL for a statement with parameters, where a percent sign has a meaning."""
    return sql.replace("%", "%%")
