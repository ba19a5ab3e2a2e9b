"""Jobs whose slots have stored states, without Spark; snapshots of them, and seeds made from these."""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoints import committed_state
from penstock.checkpoints.described_state import JobState
from penstock.control.commands import Command, Target
from penstock.control.register import Register
from penstock.engine.slot import Header, put_header
from penstock.engine.step import StepCore
from penstock.jobs.restore import declared_state
from penstock.runtime.packed_rows import PackedRow
from penstock.runtime.plan import JobPlan
from penstock.runtime.seed import read_seed
from penstock.runtime.slots import first_key_groups, slots
from penstock.savepoints.captured_tables import StepReader, assemble
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_writer import Contents
from penstock.state.group_state import Cursor, GroupState
from penstock.state.key_groups import key_groups
from penstock.state.shared import Setting, SharedStates
from penstock.state.slot_tables import SlotTables
from penstock.state.state_spec import StateSpec
from penstock.testing.memory_entries import MemoryEntries, Stored

__all__ = [
    "JobWith",
    "Keep",
    "StepWith",
    "StoredJob",
    "captured",
    "first_of_two",
    "job_of",
    "plan_of",
    "read_from",
    "read_slots_of",
]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Keep(ps.AggregateFunction[Any, Any, Any]):
    """Keeps what it was set to."""

    def create_accumulator(self) -> Any:
        raise AssertionError

    def add(self, value: Any, accumulator: Any) -> Any:
        raise AssertionError

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def first_of_two(first: Any, second: Any) -> Any:  # as a reduce function
    return first


@dataclass
class StepWith:
    """A step, and what it holds: of each key the values by state, and what is set once for all keys."""

    states: dict[str, Any]
    key_type: tuple[Any, ...]
    values: list[dict[Any, dict[str, Any]]]
    """Two micro-batches: what each key is set to, None for what is cleared."""
    shared: dict[str, Any] = field(default_factory=dict)
    header: Header | None = None
    held: list[tuple[int, bytes]] = field(default_factory=list)
    """Data that waits: key groups and bytes."""


@dataclass
class JobWith:
    steps: list[StepWith]
    key_groups: int


def job_of(drawn: Sequence[StepWith], key_groups: int) -> ps.Job:
    """The job of some steps."""
    job = ps.Job("drawn", key_groups=key_groups)
    for number, step in enumerate(drawn):
        fields = [(f"key_{i}", kind) for i, kind in enumerate(step.key_type)]
        schema = dataclasses.make_dataclass(f"Reading{number}", fields)
        stream = job.data_stream(f"readings-{number}", schema=schema)
        body = {**step.states, "process_record": lambda self, record, ctx: None}  # as overridden
        function = type(f"Function{number}", (ps.ProcessFunction,), body)()
        keyed = stream.key_by(*[name for name, _ in fields])
        keyed.process(f"step {number}", function, output=schema)
    return job


def plan_of(job: ps.Job, parallelism: int) -> JobPlan:
    return JobPlan(job.graph, job.key_groups, frozenset(), frozenset(), strict=False, parallelism=parallelism)


class StoredJob:
    """A job whose slots have stored what was drawn, through the states at work."""

    def __init__(self, drawn: JobWith, parallelism: int) -> None:
        self.job = job_of(drawn.steps, drawn.key_groups)
        self.state: JobState = declared_state(self.job)
        self.stored: dict[tuple[str, int], Stored] = {}
        plan = plan_of(self.job, parallelism)
        self.cores: dict[str, StepCore] = {}
        self.expected: dict[str, tuple[StateSpec, list[Any], list[Any], pa.DataType]] = {}
        for node, step in zip(plan.graph.steps(), drawn.steps, strict=True):
            core = self.cores[node.step] = plan.core(node)
            self._expect(node.step, core, step)
            for number, slot in enumerate(slots(drawn.key_groups, parallelism).values()):
                entries = self.stored[node.id, number] = {}
                _store(core, step, slot.key_groups, MemoryEntries(entries), drawn.key_groups)

    def read(self, node: str, reader: Any) -> list[bytes]:
        """As the state of a committed micro-batch is read."""
        return read_slots_of(self.stored, node, reader)

    def read_as_committed(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Let all checkpoints hold this state without Spark's files; return a list of the slots read since."""
        read: list[int] = []

        def stored_slots(
            folder: Path, batch: int, node: str, files: Any, numbers: Iterable[int]
        ) -> Iterator[tuple[int, Stored]]:
            for number in numbers:
                read.append(number)
                yield number, self.stored[node, number]

        monkeypatch.setattr(committed_state, "stored_slots", stored_slots)
        return read

    def _expect(self, name: str, core: StepCore, step: StepWith) -> None:
        rows: dict[Any, dict[str, Any]] = {}
        for batch in step.values:
            for key, row in batch.items():
                rows.setdefault(key, {}).update(row)
        for spec in core.specs:
            held = {
                key: kept
                for key, row in rows.items()
                if (kept := _kept(spec, core.states[spec.name], row.get(spec.name))) is not None
            }
            found = spec, list(held), list(held.values()), core.key_type
            self.expected[f"{name}/{spec.name}"] = found


def read_slots_of(stored: Mapping[tuple[str, int], Stored], node: str, reader: Any) -> list[bytes]:
    """Call a reader for each slot of a step that has stored anything."""
    found: list[bytes] = []
    for (owner, number), entries in stored.items():
        if owner == node and entries:
            found += reader(number, dict(entries))
    return found


def _kept(spec: StateSpec, declared: Any, value: Any) -> Any:
    """What a state holds that was set to a value."""
    if value is None or not isinstance(declared, ps.TemporalState):
        # An empty list or mapping is none.
        return None if isinstance(declared, ps.ListState | ps.MapState) and not value else value
    (version,) = typing.get_args(spec.python_type)
    # From the beginning there is nothing, which needs no version.
    ats = [at for at in value if (at, value[at]) != (None, None)]
    return [
        version(at, value[at]) for at in sorted(ats, key=lambda at: (at is not None, at or EPOCH))
    ] or None


def _store(
    core: StepCore, step: StepWith, groups: Sequence[int], entries: MemoryEntries, key_groups_of_job: int
) -> None:
    own = set(groups)
    for number, batch in enumerate(step.values):
        tables = SlotTables(core.state_schema, entries)
        if number == 0:
            put_header(tables, _header(core, step, groups, entries, key_groups_of_job))
        by_group: dict[int, dict[Any, Any]] = {}
        for key, row in batch.items():
            (group,) = key_groups(pa.array([_plain(core, key)], core.key_type), key_groups_of_job).tolist()
            if group in own:
                by_group.setdefault(group, {})[key] = row
        for group, rows in sorted(by_group.items()):
            changes = _changes(core, tables, group, rows)
            if changes is not None:
                tables.put(group, changes)
        if tables.changed:
            tables.store()


def _changes(core: StepCore, tables: SlotTables, group: int, rows: dict[Any, Any]) -> pa.RecordBatch | None:
    state = GroupState(core.specs, tables.table(group), Cursor(None, []))
    bound = {}
    for name, declared in core.states.items():
        made: Any = declared.run_time[0](state.columns[name], state.cursor)
        made.describe(declared)
        bound[name] = made
    for key, row in rows.items():
        state.cursor.key = key
        for name, value in row.items():
            declared = core.states[name]
            bound[name].clear()
            if isinstance(declared, ps.TemporalState):
                for at, version in (value or {}).items():
                    state.cursor.time = at
                    bound[name].set(version)
                state.cursor.time = None
            elif value is not None:
                bound[name].set(value)
    return state.changes()


def _header(
    core: StepCore, step: StepWith, groups: Sequence[int], entries: MemoryEntries, key_groups_of_job: int
) -> Header:
    header = step.header or Header()
    cursor = Cursor(None, [])
    shared = SharedStates(core.shared, None)
    shared.writable = True
    bound: dict[str, Any] = shared.bind(cursor)
    for name, found in step.shared.items():
        for key, value in found.items():
            if isinstance(core.shared[name], Setting):
                cursor.time = key
                bound[name].set(value)
                cursor.time = None
            else:
                bound[name].put(key, value)
    register = header.register
    if register is not None:
        own = Register(register)
        for number, key in enumerate(step.values[0]):
            (group,) = key_groups(pa.array([_plain(core, key)], core.key_type), key_groups_of_job).tolist()
            if group in groups:
                target = Target(step="s", key=key)
                own.note_key(Command(id=f"k-{number}", kind="set", target=target, version=number), key)
        register = own.dump()
    mine = [
        PackedRow(core.step, group, 0, "p", place, body)
        for place, (group, body) in enumerate(step.held)
        if group in groups
    ]
    if mine:
        entries.put("held/0", msgspec.msgpack.encode(mine))
    size = sum(len(row.body) for row in mine)
    return msgspec.structs.replace(
        header, register=register, shared=shared.dump(), held_bytes=size, held_parts=min(len(mine), 1)
    )


def _plain(core: StepCore, key: Any) -> Any:
    """A key as Arrow takes it."""
    if pa.types.is_struct(core.key_type):
        return dict(zip([f.name for f in core.key_type], key, strict=True))
    return key


def captured(uri: Path, state: JobState, form: Any, read: StepReader, **more: Any) -> Manifest:
    """A snapshot of what `read` finds."""
    kind: Any = "savepoint" if form == "arrow" else "dump"
    steps = {name: msgspec.to_builtins(step) for name, step in state.steps.items()}
    about = {"id": "s-1", "batch": 7, **more}
    contents = Contents(
        kind, job=state.job, key_groups=state.key_groups, format=form, tables=(), steps=steps, **about
    )
    return assemble(str(uri), contents, state, read)


def read_from(seed: Path, state: JobState, parallelism: int) -> StepReader:
    """Reads a seed as the state of a committed micro-batch is read."""
    firsts = first_key_groups(state.key_groups, parallelism)
    return lambda node, reader: read_seed(seed, node, reader, firsts)
