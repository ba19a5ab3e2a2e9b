"""Job tables: the committed state of a job, which may be running, as tables for queries (no Spark)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.committed_state import CommittedState, read_committed
from penstock.checkpoints.described_state import EXPIRES_AT, DescribedStep, read_described
from penstock.engine.slot import Header, merge_headers
from penstock.errors import QueryError
from penstock.queries.locked_engine import QueryLimits, answer, check, quote
from penstock.queries.named_tables import StepColumns, Wanted, explain_names, find_wanted, select
from penstock.queries.query_answers import Answer
from penstock.savepoints.captured_tables import (
    FrozenEntries,
    shared_name,
    shared_rows,
    slot_header,
    table_name,
)
from penstock.state.expiry import expires_name
from penstock.state.group_table import KEY_COLUMN
from penstock.state.latest_rows import latest_rows
from penstock.state.shared import stored_shared
from penstock.state.timeline import TIMERS

__all__ = ["query_job"]

_MIB: Final = 1 << 20


def query_job(checkpoint: str, query: str, limits: QueryLimits | None = None) -> Answer:
    """Return the result of a SELECT over the state of a job after its newest committed micro-batch.

    `checkpoint` is the folder of the job's checkpoint, of which this only reads files; the job may be running. The
    tables are those of `query_snapshot`.

    Raises QueryError for a wrong query, with its position, and for one that exceeds the limits; CheckpointError if the
    state cannot be read.
    """
    folder, most = Checkpoint(Path(checkpoint)), limits or QueryLimits()
    steps = read_described(folder.folder).steps
    relations = dict(_relations(steps))
    wanted = find_wanted(query, relations)
    needed = [relations[name] for name in wanted.relations]
    try:
        # A wrong query fails before anything is read.
        empty = {one.table: one.schema.empty_table() for one in needed}
        check(query, empty, {one.name: one.sql(list(one.states)) for one in needed}, most)
        needs = _Needs(needed, wanted, most)
        batch, tables = read_committed(folder, lambda state: (state.batch, _read(state, steps, needs)))
        views = {one.name: one.sql(one.needed(wanted)) for one in needed}
        return Answer(answer(query, tables, views, most), batch)
    except QueryError as e:
        raise explain_names(e, steps, [name for name in relations if name not in steps]) from None


@dataclass(frozen=True)
class _StepRelation:
    """All states of a step by key."""

    name: str
    table: str
    schema: pa.Schema
    columns: StepColumns

    @property
    def step(self) -> str:
        """The step whose state it shows."""
        return self.name

    @property
    def states(self) -> Mapping[str, str]:
        """The stored columns that it shows, with their names in a query."""
        return self.columns.state_columns()

    def needed(self, wanted: Wanted) -> list[str]:
        """Return the stored columns that a query needs."""
        return [stored for stored, shown in self.states.items() if wanted.wants(shown)]

    def sql(self, stored: Sequence[str]) -> str:
        """Return the SQL that shows some stored columns."""
        shown = {self.states[name]: quote(name) for name in stored}
        return select({**self.columns.key_columns(), **shown}, self.table)


@dataclass(frozen=True)
class _TableRelation:
    """A single table: a state of a step, with its expiry if it has one."""

    name: str
    table: str
    schema: pa.Schema
    step: str
    states: Mapping[str, str]

    def needed(self, wanted: Wanted) -> list[str]:  # noqa: ARG002  # as the others
        """Return all its stored columns: a key without a value is not in the table."""
        return list(self.states)

    def sql(self, stored: Sequence[str]) -> str:
        """Return the SQL that shows the keys with a value."""
        shown = {self.states[name]: quote(name) for name in stored}
        if EXPIRES_AT in shown:
            shown[EXPIRES_AT] = f"make_timestamptz({shown[EXPIRES_AT]} * 1000)"
        return f"{select({KEY_COLUMN: KEY_COLUMN, **shown}, self.table)} WHERE {quote(stored[0])} IS NOT NULL"


@dataclass(frozen=True)
class _SharedRelation:
    """A setting or a broadcast state, which a step keeps once."""

    name: str
    table: str
    schema: pa.Schema
    step: str
    state: str
    states: Mapping[str, str]

    def needed(self, wanted: Wanted) -> list[str]:  # noqa: ARG002  # as the others
        """Return no stored columns, since it has none."""
        return []

    def sql(self, stored: Sequence[str]) -> str:  # noqa: ARG002  # as the others
        """Return the SQL that shows all of it."""
        return f"SELECT * FROM {self.table}"  # noqa: S608  # a name of our own


_Relation = _StepRelation | _TableRelation | _SharedRelation


def _relations(steps: Mapping[str, DescribedStep]) -> Iterator[tuple[str, _Relation]]:
    """Yield the relations that a query can name, by name: steps, then single tables."""
    stored = {
        name: (f"__step_{number}", pa.schema([field.remove_metadata() for field in step.schema]))
        for number, (name, step) in enumerate(steps.items())
    }
    for name, step in steps.items():
        states = tuple(state for state in step.states if state != TIMERS)
        if states:
            columns = StepColumns(step.schema.field(KEY_COLUMN).type, step.key_name, states)
            yield name, _StepRelation(name, *stored[name], columns)
    for number, (name, step) in enumerate(steps.items()):
        for state, described in step.states.items():
            called = table_name(name, state)
            shown = {state: "value"}
            if EXPIRES_AT in described.schema.names:
                shown[expires_name(state)] = EXPIRES_AT
            yield called, _TableRelation(called, *stored[name], name, shown)
        for place, (state, described) in enumerate(step.shared.items()):
            called, table = shared_name(name, state), f"__shared_{number}_{place}"
            yield called, _SharedRelation(called, table, described.schema, name, state, {})


@dataclass(frozen=True)
class _Needs:
    """The tables and columns that a query needs, and the memory that it may take."""

    relations: Sequence[_Relation]
    wanted: Wanted
    limits: QueryLimits

    def columns(self, step: str, stored: Sequence[str]) -> list[str]:
        """Return the columns of a step's stored table that the query needs, beginning with the key."""
        named = {name for one in self.relations if one.step == step for name in one.needed(self.wanted)}
        return [name for name in stored if name == KEY_COLUMN or name in named]

    def check_memory(self, size: int) -> None:
        """Raise QueryError if the data that is read has more bytes than the query may take."""
        if size > self.limits.memory_mb * _MIB:
            raise QueryError(
                f"The state that the query names needs more than {self.limits.memory_mb} MiB of memory. Name fewer "
                "columns, or allow more."
            )


def _read(state: CommittedState, steps: Mapping[str, DescribedStep], needs: _Needs) -> dict[str, pa.Table]:
    """Read the needed tables by their internal names, slot by slot."""
    tables: dict[str, list[pa.Table]] = {one.table: [] for one in needs.relations}
    size = 0
    for name in dict.fromkeys(one.step for one in needs.relations):
        step, headers = steps[name], list[Header]()
        mine = [one for one in needs.relations if one.step == name]
        keyed = next((one.table for one in mine if not isinstance(one, _SharedRelation)), None)
        columns = needs.columns(name, step.schema.names)
        for _, entries in state.slots(step.node):
            needs.check_memory(size + sum(map(len, entries.values())))
            if keyed is not None:
                tables[keyed].append(latest_rows(step.schema, FrozenEntries(entries), columns))
                size += tables[keyed][-1].nbytes
            headers.append(slot_header(step, entries))
            # The next slot needs the memory.
            del entries
        if keyed is not None:
            schema = pa.schema([step.schema.field(column).remove_metadata() for column in columns])
            tables[keyed].append(schema.empty_table())
        found = stored_shared(merge_headers(headers).shared)
        for one in mine:
            if isinstance(one, _SharedRelation):
                rows = shared_rows(one.state, step.shared[one.state], found)
                tables[one.table].append(pa.Table.from_batches([rows]))
    return {name: pa.concat_tables(parts) for name, parts in tables.items()}
