"""Snapshot tables: the tables of a dump or savepoint, as a query sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import QueryError
from penstock.queries.locked_engine import QueryLimits, answer
from penstock.queries.named_tables import StepColumns, explain_names, find_wanted, select
from penstock.queries.query_answers import Answer
from penstock.snapshots.manifest import Manifest, TableEntry
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import Store, open_store

__all__ = ["answer_from_snapshot", "query_snapshot"]


@dataclass(frozen=True)
class Relation:
    """The rows behind a name in a query: the states of a step by key, or one table unchanged."""

    name: str
    tables: tuple[TableEntry, ...]
    key_name: str | None = None
    """The name of the key of a step; None for a table."""

    def sql(self, registered: dict[str, str]) -> str:
        """Return the SQL over the tables, whose internal names are given."""
        if self.key_name is None:
            return f"SELECT * FROM {registered[self.tables[0].name]}"  # noqa: S608  # a name of our own
        states = tuple(table.name.split("/", 1)[1] for table in self.tables)
        columns = StepColumns(self.tables[0].arrow_schema.field("key").type, self.key_name, states)
        keys = " UNION ".join(f"SELECT key FROM {registered[table.name]}" for table in self.tables)  # noqa: S608  # as above
        selected = {name: f"k.{expression}" for name, expression in columns.key_columns().items()}
        joins = []
        for number, (table, shown) in enumerate(
            zip(self.tables, columns.state_columns().values(), strict=True)
        ):
            selected[shown] = f"t{number}.value"
            joins.append(f"LEFT JOIN {registered[table.name]} t{number} ON t{number}.key = k.key")
        return select(selected, f"({keys}) k {' '.join(joins)}")


def query_snapshot(place: str, query: str, limits: QueryLimits | None = None) -> pa.Table:
    """Return the result of a SELECT over a dump or savepoint, as an Arrow table (`.to_pandas()` makes a frame).

    `state.STEP` has a row for each key of a step, with a column for each of its states; `state."STEP/STATE"` is one
    table as it is in the snapshot. docs/queries.md describes both.

    Raises QueryError for a wrong query, with its position, and for one that exceeds the limits; SnapshotError if the
    snapshot cannot be read.
    """
    return answer_from_snapshot(place, query, limits or QueryLimits()).rows


def answer_from_snapshot(place: str, query: str, limits: QueryLimits) -> Answer:
    """Answer a query as `query_snapshot` does; the micro-batch is that of the snapshot."""
    store = open_store(place)
    manifest = read_manifest(store)
    found = {relation.name: relation for relation in _relations(manifest)}
    names = find_wanted(query, found).relations
    needed = {table.name: table for name in names for table in found[name].tables}
    registered = {name: f"__table_{number}" for number, name in enumerate(needed)}
    tables = {registered[name]: _read(store, manifest, table) for name, table in needed.items()}
    views = {name: found[name].sql(registered) for name in names}
    try:
        return Answer(answer(query, tables, views, limits), manifest.batch)
    except QueryError as e:
        steps = [name for name, one in found.items() if one.key_name is not None]
        raise explain_names(e, steps, [name for name in found if name not in steps]) from None


def _relations(manifest: Manifest) -> Iterator[Relation]:
    """Yield the relations that a query can name: steps, then single tables. Internal tables are left out."""
    tables = [table for table in manifest.tables if table.kind != "internal"]
    by_step: dict[str, list[TableEntry]] = {}
    for table in tables:
        if table.kind == "state" and table.key == ("key",):
            by_step.setdefault(table.step, []).append(table)
    for step, states in by_step.items():
        # Snapshots of earlier versions do not name the key.
        yield Relation(step, tuple(states), manifest.steps.get(step, {}).get("key_name", "key"))
    for table in tables:
        yield Relation(table.name, (table,))


def _read(store: Store, manifest: Manifest, table: TableEntry) -> pa.Table:
    return pa.Table.from_batches(list(read_table(store, manifest, table.name)), schema=table.arrow_schema)
