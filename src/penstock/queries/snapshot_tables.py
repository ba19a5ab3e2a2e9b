"""Snapshot tables: the tables of a dump or savepoint, as a query sees them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import QueryError
from penstock.queries.locked_engine import QueryLimits, answer, quoted
from penstock.snapshots.manifest import Manifest, TableEntry
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import Store, open_store

__all__ = ["query_snapshot", "relations"]

_SCHEMA: Final = "state"


@dataclass(frozen=True)
class Relation:
    """What a query sees under a name: the states of a step by key, or one table as it is."""

    name: str
    tables: tuple[TableEntry, ...]
    by_key: bool

    def sql(self, registered: dict[str, str]) -> str:
        """Return the SQL over the tables, whose internal names are given."""
        if not self.by_key:
            return f"SELECT * FROM {registered[self.tables[0].name]}"  # noqa: S608  # a name of our own
        key = self.tables[0].arrow_schema.field("key").type
        keys = " UNION ".join(f"SELECT key FROM {registered[table.name]}" for table in self.tables)  # noqa: S608  # as above
        columns, joins = [*_key_columns(key)], []
        taken = {"key", *(field.name for field in key)} if pa.types.is_struct(key) else {"key"}
        for number, table in enumerate(self.tables):
            state = table.name.split("/", 1)[1]
            shown = f"{state}_state" if state in taken else state
            columns.append(f"t{number}.value AS {quoted(shown)}")
            joins.append(f"LEFT JOIN {registered[table.name]} t{number} ON t{number}.key = k.key")
        return f"SELECT {', '.join(columns)} FROM ({keys}) k {' '.join(joins)}"  # noqa: S608  # names are quoted


def query_snapshot(place: str, query: str, limits: QueryLimits | None = None) -> pa.Table:
    """Return the result of a SELECT over a dump or savepoint, as an Arrow table (`.to_pandas()` makes a frame).

    `state.STEP` has a row for each key of a step, with a column for each of its states; `state."STEP/STATE"` is one
    table as it is in the snapshot. docs/queries.md describes both.

    Raises QueryError for a wrong query, with its position, and for one that exceeds the limits; SnapshotError if the
    snapshot cannot be read.
    """
    store = open_store(place)
    manifest = read_manifest(store)
    found = {relation.name: relation for relation in relations(manifest)}
    names = _named(query, found)
    needed = {table.name: table for name in names for table in found[name].tables}
    registered = {name: f"__table_{number}" for number, name in enumerate(needed)}
    tables = {registered[name]: _read(store, manifest, table) for name, table in needed.items()}
    views = {name: found[name].sql(registered) for name in names}
    try:
        return answer(query, tables, views, limits or QueryLimits())
    except QueryError as e:
        if "does not exist" not in str(e) and "not found" not in str(e):
            raise
        steps = ", ".join(f"{_SCHEMA}.{_shown(name)}" for name, one in found.items() if one.by_key) or "none"
        single = next((f"{_SCHEMA}.{_shown(name)}" for name, one in found.items() if not one.by_key), "none")
        raise QueryError(
            f"{e}\nSteps with keys are {steps}. Each table of the snapshot has its own name, such as {single}."
        ) from None


def relations(manifest: Manifest) -> Iterator[Relation]:
    """Yield what a query can name: steps, then single tables. Tables that penstock keeps for itself are left out."""
    tables = [table for table in manifest.tables if table.kind != "internal"]
    by_step: dict[str, list[TableEntry]] = {}
    for table in tables:
        if table.kind == "state" and table.key == ("key",):
            by_step.setdefault(table.step, []).append(table)
    for step, states in by_step.items():
        yield Relation(step, tuple(states), by_key=True)
    for table in tables:
        yield Relation(table.name, (table,), by_key=False)


def _named(query: str, known: Collection[str]) -> list[str]:
    """Return the relations that a query names, so that no others are read; all if the query cannot be parsed."""
    # Imported late, since describing a job needs no parser.
    import sqlglot
    from sqlglot import exp

    # It warns of statements that it does not know; DuckDB decides on them.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        found = {
            table.name
            for statement in sqlglot.parse(query, dialect="duckdb")
            if statement is not None
            for table in statement.find_all(exp.Table)
        }
    except (sqlglot.errors.SqlglotError, RecursionError):
        return list(known)
    # Names without quotes count in any case.
    lower = {name.lower() for name in found}
    return [name for name in known if name.lower() in lower]


def _read(store: Store, manifest: Manifest, table: TableEntry) -> pa.Table:
    return pa.Table.from_batches(list(read_table(store, manifest, table.name)), schema=table.arrow_schema)


def _key_columns(key: pa.DataType) -> Iterator[str]:
    """Yield the columns of a key: its fields if it has several, else `key`."""
    if not pa.types.is_struct(key):
        yield "k.key AS key"
        return
    for field in key:
        yield f"k.key.{quoted(field.name)} AS {quoted(field.name)}"


def _shown(name: str) -> str:
    return name if name.isidentifier() else quoted(name)
