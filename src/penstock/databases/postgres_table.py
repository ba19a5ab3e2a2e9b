"""The table of a sink: checked or created at a start, and the statements that write to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.bindings.types import PostgresBinding
from penstock.databases.copy_text import column_type
from penstock.errors import BindingError, PlaceMissingError

__all__ = [
    "GONE",
    "ORDER",
    "Statements",
    "check_place",
    "ensure_table",
    "quote",
    "takes_nulls_as_equal",
]

ORDER: Final = "_penstock_order"
"""The column of staged rows with their place among them."""
GONE: Final = "_penstock_gone"
"""The column of staged rows that says whether the row is deleted."""
_STAGED: Final = "penstock_staged"


def quote(*names: str) -> str:
    """Return a name, or the parts of one, as SQL.

    >>> quote("public", 'a"b')
    '"public"."a""b"'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True)
class Statements:
    """The statements that write records with some fields; with a key the last of each key replaces its row."""

    table: str
    names: tuple[str, ...]
    key: tuple[str, ...]

    @classmethod
    def of(cls, binding: PostgresBinding, names: Sequence[str], key: Sequence[str]) -> Statements:
        """Return the statements for the table of a binding."""
        return cls(quote(binding.schema, binding.table), tuple(names), tuple(key))

    @property
    def copy(self) -> str:
        """Add rows to the table, or to the staged rows."""
        names = (*self.names, ORDER, GONE) if self.key else self.names
        table = _STAGED if self.key else self.table
        return f"COPY {table} ({', '.join(map(quote, names))}) FROM STDIN (FORMAT csv)"

    @property
    def stage(self) -> str:
        """Make the table of staged rows, with the types of the table, for the life of the connection."""
        names = ", ".join(map(quote, self.names))
        return (
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGED} ON COMMIT DELETE ROWS AS SELECT {names}, "
            f"0::bigint AS {quote(ORDER)}, false AS {quote(GONE)} FROM {self.table} WITH NO DATA"
        )

    @property
    def is_stale(self) -> tuple[str, tuple[str, str]]:
        """The query, and its parameters, whether a column of the table has another type since rows were staged."""
        query = (
            "SELECT EXISTS (SELECT FROM pg_attribute s JOIN pg_attribute t ON t.attname = s.attname "
            "WHERE s.attrelid = to_regclass(%s) AND t.attrelid = to_regclass(%s) AND s.attnum > 0 "
            "AND (s.atttypid, s.atttypmod) <> (t.atttypid, t.atttypmod))"
        )
        return query, (f"pg_temp.{_STAGED}", self.table)

    @property
    def unstage(self) -> str:
        """Remove the table of staged rows."""
        return f"DROP TABLE pg_temp.{_STAGED}"

    def apply(self, *, with_nulls: bool) -> tuple[str, ...]:
        """Delete and replace rows by the last staged row of each key, and empty the staged rows.

        If the key of a row may have a null, rows are found without an index.
        """
        same_as = "IS NOT DISTINCT FROM" if with_nulls else "="
        key = ", ".join(map(quote, self.key))
        last = f"SELECT DISTINCT ON ({key}) * FROM {_STAGED} ORDER BY {key}, {quote(ORDER)} DESC"
        same = " AND ".join(f"t.{quote(name)} {same_as} last.{quote(name)}" for name in self.key)
        names = ", ".join(map(quote, self.names))
        others = [name for name in self.names if name not in self.key]
        changes = ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in others)
        what = f"UPDATE SET {changes}" if others else "NOTHING"
        return (
            f"DELETE FROM {self.table} AS t USING ({last}) AS last WHERE last.{quote(GONE)} AND {same}",
            # In the order of the key, so that tasks that write the same rows wait for each other in one order.
            (
                f"INSERT INTO {self.table} ({names}) SELECT {names} FROM ({last}) AS last "
                f"WHERE NOT {quote(GONE)} ORDER BY {key} ON CONFLICT ({key}) DO {what}"
            ),
            f"DELETE FROM {_STAGED}",
        )


def ensure_table(connection: Any, binding: PostgresBinding, schema: pa.Schema, key: Sequence[str]) -> None:
    """Check that the table of a binding takes records, or create it where the binding says so.

    Raises PlaceMissingError when it does not exist, and BindingError when it does not take them.
    """
    found = _columns(connection, binding)
    if not found and binding.create_table:
        connection.execute(_creation(binding, schema, key))
        connection.commit()
        return
    if not found:
        raise PlaceMissingError(
            f"Sink {binding.stream!r}: {binding.place} does not exist, or its user may not use it. Create it, or add "
            f"create_table=true to the URI, which runs: {_creation(binding, schema, key)}"
        )
    _check_rights(connection, binding, ("SELECT", "INSERT", "UPDATE", "DELETE") if key else ("INSERT",))
    missing = [name for name in schema.names if name not in found]
    if missing:
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.place} has no column {', '.join(missing)}; it has {', '.join(found)}. "
            f"Run: {_additions(binding, schema, missing)}"
        )
    needed = [name for name, is_needed in found.items() if is_needed and name not in schema.names]
    if needed:
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.place} needs a value for {', '.join(needed)}, which the records do "
            "not have. Give the columns a default, or let them be null."
        )
    _check_writable(connection, binding, schema, key)
    if key and not _unique_indexes(connection, binding, key):
        names = ", ".join(map(quote, key))
        raise BindingError(
            f"Sink {binding.stream!r}: rows of {binding.place} are replaced by {', '.join(key)}, but no unique index "
            "that is checked at once has exactly these columns. Run: CREATE UNIQUE INDEX ON "
            f"{quote(binding.schema, binding.table)} ({names})"
        )


def check_place(connection: Any, binding: PostgresBinding) -> None:
    """Raise PlaceMissingError when the table of a binding does not exist."""
    if not _columns(connection, binding):
        raise PlaceMissingError(f"{binding.place} does not exist, or its user may not use it")


def _check_rights(connection: Any, binding: PostgresBinding, needed: Sequence[str]) -> None:
    table = quote(binding.schema, binding.table)
    found = connection.execute(
        "SELECT array_agg(needed) FROM unnest(%s::text[]) AS needed WHERE NOT has_table_privilege(%s, needed)",
        (list(needed), table),
    ).fetchone()
    if found[0]:
        missing, user = ", ".join(found[0]), quote(binding.client["user"])
        raise BindingError(
            f"Sink {binding.stream!r}: the user {binding.client['user']} may not write to {binding.place}. Run: "
            f"GRANT {missing} ON {table} TO {user}"
        )


def _columns(connection: Any, binding: PostgresBinding) -> dict[str, bool]:
    """Return the columns of a table, each with whether it needs a value; none if the user cannot see the table."""
    rows = connection.execute(
        "SELECT column_name, is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' "
        "AND is_generated = 'NEVER' FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
        "ORDER BY ordinal_position",
        (binding.schema, binding.table),
    ).fetchall()
    return dict(rows)


def _check_writable(connection: Any, binding: PostgresBinding, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise BindingError when rows with these fields cannot be added, or replaced by a key."""
    table = quote(binding.schema, binding.table)
    found = connection.execute(
        "SELECT c.relkind = 'v', EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgtype & 64 <> 0) "
        "FROM pg_class c WHERE c.oid = to_regclass(%s)",
        (table,),
    ).fetchone()
    is_view, has_trigger = found or (False, False)
    if is_view and (key or not has_trigger):
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.place} is a view, which takes no rows"
            f"{' that replace others' if has_trigger else ''}. Name a table."
        )
    rows = connection.execute(
        "SELECT column_name, is_generated = 'ALWAYS' FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s AND (is_generated = 'ALWAYS' OR identity_generation = 'ALWAYS')",
        (binding.schema, binding.table),
    ).fetchall()
    generated = [name for name, is_generated in rows if name in schema.names and is_generated]
    if generated:
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.place} computes {', '.join(generated)} itself, and the records have a "
            "value for it. Leave the field out of the records, or name another table."
        )
    own = [name for name, is_generated in rows if name in schema.names and key]
    if own:
        changes = ", ".join(f"ALTER COLUMN {quote(name)} SET GENERATED BY DEFAULT" for name in own)
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.place} always chooses {', '.join(own)} itself, so rows cannot be "
            f"replaced. Run: ALTER TABLE {table} {changes}"
        )


def takes_nulls_as_equal(connection: Any, binding: PostgresBinding, key: Sequence[str]) -> bool:
    """Return whether a record with a null in its key replaces the row with the same key."""
    return any(_unique_indexes(connection, binding, key))


def _unique_indexes(connection: Any, binding: PostgresBinding, key: Sequence[str]) -> list[bool]:
    """Return for each unique index with exactly these columns whether it takes nulls as equal."""
    # Before PostgreSQL 15 no index has the last.
    rows = connection.execute(
        "SELECT array_agg(a.attname::text), coalesce(bool_or((to_jsonb(i)->>'indnullsnotdistinct')::boolean), false) "
        "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
        "WHERE i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL "
        "AND n.nspname = %s AND c.relname = %s GROUP BY i.indexrelid",
        (binding.schema, binding.table),
    ).fetchall()
    return [nulls for names, nulls in rows if set(names) == set(key)]


def _creation(binding: PostgresBinding, schema: pa.Schema, key: Sequence[str]) -> str:
    columns = [
        f"{quote(field.name)} {column_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema
    ]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    return f"CREATE TABLE IF NOT EXISTS {quote(binding.schema, binding.table)} ({', '.join(columns)})"


def _additions(binding: PostgresBinding, schema: pa.Schema, names: Sequence[str]) -> str:
    added = ", ".join(f"ADD COLUMN {quote(name)} {column_type(schema.field(name).type)}" for name in names)
    return f"ALTER TABLE {quote(binding.schema, binding.table)} {added}"
