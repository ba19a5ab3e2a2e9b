"""Captured tables: convert the stored entries of a job's slots to the tables of a snapshot. Needs no Spark."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.checkpoints.described_state import EXPIRES_AT, DescribedState, DescribedStep, JobState
from penstock.engine.slot import Header, header_of, held_name, merge_headers
from penstock.objects.object_stores import find_endpoint
from penstock.records.types import empty_like
from penstock.runtime.packed_rows import PackedRow
from penstock.runtime.seed import SlotReader
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_writer import Contents, PartEntry, Parts, TableInfo, commit
from penstock.snapshots.stores import Store, open_store
from penstock.snapshots.table_formats import SnapshotFormat
from penstock.state.expiry import expires_name
from penstock.state.group_table import KEY_COLUMN, GroupTable, sorted_by_key
from penstock.state.shared import stored_shared
from penstock.state.slot_tables import Only, SlotTables
from penstock.state.stored_blocks import Content, conform
from penstock.state.stored_runs import stored_runs
from penstock.state.timeline import TIMERS

__all__ = [
    "CLOCK",
    "HEADER",
    "HELD",
    "FrozenEntries",
    "StepReader",
    "assemble",
    "shared_name",
    "shared_rows",
    "slot_header",
    "table_name",
]

HEADER: Final = "__header"
HELD: Final = "__held"
CLOCK: Final = "__clock"
StepReader: TypeAlias = Callable[[str, SlotReader], list[bytes]]
"""Calls a reader for each slot of a node's step; returns all results."""

_CONTENT: Final = pa.schema([pa.field("content", pa.binary(), nullable=False)])
_NOTHING: Final = Only(frozenset(), frozenset())
_CLOCK: Final = pa.schema([pa.field("clock_ms", pa.int64(), nullable=False)])


def table_name(step: str, name: str) -> str:
    """Return the name of a state's table in a snapshot."""
    return f"{step}/{name}"


def shared_name(step: str, name: str) -> str:
    """Return the name of the table for a setting or a broadcast state."""
    return table_name(step, f"shared/{name}")


def assemble(uri: str, contents: Contents, state: JobState, read: StepReader) -> Manifest:
    """Write the tables of all steps and commit the snapshot. `read` has each slot write its own part."""
    store = open_store(uri)
    endpoint = find_endpoint(os.environ)
    captured = [
        [
            msgspec.msgpack.decode(body, type=_Result)
            for body in read(step.node, _Task(name, step, uri, contents.format, endpoint))
        ]
        for name, step in state.steps.items()
    ]
    tables, parts = _collect(state, captured, store, contents.format)
    return commit(store, dataclasses.replace(contents, tables=tables), parts)


class _Result(msgspec.Struct, array_like=True):
    """A result of a slot: a part of a table, the state that it keeps once for the step, waiting data, or its clock."""

    part: PartEntry | None = None
    header: bytes | None = None
    held: bytes | None = None
    clock_ms: int | None = None


@dataclass(frozen=True)
class _Task:
    """Writes the parts of one slot, in a worker, which need not know where the stores are."""

    name: str
    step: DescribedStep
    uri: str
    format: SnapshotFormat
    endpoint: Mapping[str, str]

    def __call__(self, number: int, entries: Mapping[str, Content]) -> Iterator[bytes]:
        stored = FrozenEntries(entries)
        store = open_store(self.uri, self.endpoint)
        written = [
            (info, Parts(store, info, number, self.format)) for info in keyed_tables(self.name, self.step)
        ]
        for run in stored_runs(self.step.schema, stored):
            for part in _write_run(run, written):
                yield msgspec.msgpack.encode(_Result(part=part))
        tables = SlotTables(self.step.schema, stored, only=_NOTHING)
        if tables.clock_ms is not None:
            yield msgspec.msgpack.encode(_Result(clock_ms=tables.clock_ms))
        header = header_of(tables)
        if header != Header():
            yield msgspec.msgpack.encode(_Result(header=header.dump()))
            for number in range(header.held_parts):
                yield msgspec.msgpack.encode(_Result(held=bytes(entries[held_name(number)])))


def slot_header(step: DescribedStep, entries: Mapping[str, Content]) -> Header:
    """Return the state that a slot keeps once for its step."""
    return header_of(SlotTables(step.schema, FrozenEntries(entries), only=_NOTHING))


def _write_run(run: dict[int, GroupTable], tables: Sequence[tuple[TableInfo, Parts]]) -> list[PartEntry]:
    """Write the rows of some key groups. Removes each group's table from `run` to free its memory."""
    rows = sorted_by_key(pa.concat_batches([run.pop(group).all_rows() for group in sorted(run)]))
    return [part for info, parts in tables for part in parts.write([_part_of(rows, info)])]


@dataclass(frozen=True)
class FrozenEntries:
    """Read-only stored entries."""

    entries: Mapping[str, Content]

    def get(self, name: str) -> Content | None:
        """Return the bytes of an entry, None without one."""
        return self.entries.get(name)

    def put(self, name: str, content: bytes) -> None:  # noqa: ARG002  # as Entries
        """Raise AssertionError, since nothing may be written."""
        raise AssertionError(name)

    def remove(self, name: str) -> None:
        """Raise AssertionError, since nothing may be removed."""
        raise AssertionError(name)


def keyed_tables(name: str, step: DescribedStep) -> list[TableInfo]:
    """Return the tables of a step's keyed states."""
    return [
        TableInfo(table_name(name, state), name, "timers" if state == TIMERS else "state", found.schema)
        for state, found in step.states.items()
    ]


def _part_of(rows: pa.RecordBatch, info: TableInfo) -> pa.RecordBatch:
    """Return the keys that have a value in one state, with this value."""
    state = info.name.removeprefix(f"{info.step}/")
    column = rows.column(state)
    held = rows.filter(column.is_valid()) if column.null_count else rows
    columns = [held.column(KEY_COLUMN), held.column(state)]
    if EXPIRES_AT in info.schema.names:
        columns.append(held.column(expires_name(state)).cast(info.schema.field(EXPIRES_AT).type))
    return pa.RecordBatch.from_arrays(columns, schema=info.schema)


def _collect(
    state: JobState, captured: Sequence[Sequence[_Result]], store: Store, form: SnapshotFormat
) -> tuple[list[TableInfo], list[PartEntry]]:
    """Return all tables and parts: those from the slots, and those of the state kept once for the step."""
    tables: list[TableInfo] = []
    parts: list[PartEntry] = []
    for (name, step), results in zip(state.steps.items(), captured, strict=True):
        tables += keyed_tables(name, step)
        parts += [result.part for result in results if result.part is not None]
        headers = [Header.of(result.header) for result in results if result.header is not None]
        header = merge_headers(headers)
        for info, rows in [
            *_shared_tables(name, step, header.shared),
            (
                TableInfo(table_name(name, HEADER), name, "internal", _CONTENT, ()),
                _contents([msgspec.structs.replace(header, shared=None).dump()]),
            ),
            (
                TableInfo(table_name(name, HELD), name, "internal", _CONTENT, ()),
                _contents(_split_held(result.held for result in results)),
            ),
            (TableInfo(table_name(name, CLOCK), name, "internal", _CLOCK, ()), _clock(results)),
        ]:
            tables.append(info)
            parts += Parts(store, info, 0, form).write(rows)
    return tables, parts


def _shared_tables(
    name: str, step: DescribedStep, stored: bytes | None
) -> Iterator[tuple[TableInfo, Iterable[pa.RecordBatch]]]:
    found = stored_shared(stored)
    for state, described in step.shared.items():
        schema = described.schema
        info = TableInfo(
            shared_name(name, state), name, "shared", schema, None if "key" in schema.names else ()
        )
        yield info, [shared_rows(state, described, found)]


def shared_rows(name: str, state: DescribedState, found: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of a shared state as it is declared now. The slot may still have the old declaration."""
    schema = state.schema
    rows = found.get(name)
    if rows is None and state.renamed_from is not None:
        rows = found.get(state.renamed_from)
    if rows is None:
        return empty_like(schema)
    return pa.RecordBatch.from_arrays(conform(rows, schema).columns, schema=schema)


def _split_held(held: Iterable[bytes | None]) -> Iterator[bytes]:
    """Yield each block of waiting data by itself, so that the result does not depend on the number of slots."""
    for content in held:
        if content is not None:
            for row in msgspec.msgpack.decode(content, type=list[PackedRow]):
                yield msgspec.msgpack.encode([row])


def _clock(results: Sequence[_Result]) -> list[pa.RecordBatch]:
    """Return the largest event time that the step has seen."""
    times = [result.clock_ms for result in results if result.clock_ms is not None]
    return [pa.RecordBatch.from_arrays([pa.array([max(times)], pa.int64())], schema=_CLOCK)] if times else []


def _contents(found: Iterable[bytes | None]) -> Iterator[pa.RecordBatch]:
    for content in found:
        if content is not None:
            yield pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], schema=_CONTENT)
