"""Snapshot capture: the state of a job after a committed micro-batch, as a dump or a savepoint. The job may run on."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.described_state import (
    EXPIRES_AT,
    DescribedState,
    DescribedStep,
    JobState,
    read_described,
)
from penstock.engine.slot import Header, header_of, held_name, merged
from penstock.errors import AlreadyThereError, CheckpointError
from penstock.runtime.cuts import batch_numbers, read_offsets
from penstock.runtime.packed_rows import PackedRow
from penstock.runtime.seed import read_seed
from penstock.runtime.slots import first_key_groups
from penstock.savepoints.source_files import OvertakenError, copy_own_files, copy_topic_ids
from penstock.snapshots.manifest import MANIFEST, FileEntry, Manifest, SnapshotKind
from penstock.snapshots.snapshot_writer import Contents, PartEntry, Parts, TableInfo, commit
from penstock.snapshots.stores import Store, open_store
from penstock.snapshots.table_formats import SnapshotFormat
from penstock.spark.stored_state import SlotReader, read_slots
from penstock.spark.types import SparkSession
from penstock.state.expiry import expires_name
from penstock.state.group_table import KEY_COLUMN, GroupTable, sorted_by_key
from penstock.state.shared import stored_shared
from penstock.state.slot_tables import Only, SlotTables
from penstock.state.stored_blocks import Content, conformed
from penstock.state.stored_runs import stored_runs
from penstock.state.timeline import TIMERS

__all__ = [
    "CLOCK",
    "HEADER",
    "HELD",
    "Capture",
    "FrozenEntries",
    "assemble",
    "capture",
    "check_committed",
    "committed",
    "positions_of",
    "read_step",
    "shared_name",
    "table_name",
]

HEADER: Final = "__header"
HELD: Final = "__held"
CLOCK: Final = "__clock"
StepReader: TypeAlias = Callable[[str, SlotReader], list[bytes]]
"""Calls a reader for each slot of the step of a node; gives all that it gave."""

_MOST_ATTEMPTS: Final = 20

_CONTENT: Final = pa.schema([pa.field("content", pa.binary(), nullable=False)])
_NOTHING: Final = Only(frozenset(), frozenset())
_CLOCK: Final = pa.schema([pa.field("clock_ms", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class Capture:
    """What to capture, and where to: `batch` is the micro-batch, None the newest one that is committed.

    A savepoint has the files and journals of the sources as well, and a dump which Kafka topics they are, unless
    `keeps_files` says otherwise.
    """

    kind: SnapshotKind
    uri: str
    format: SnapshotFormat
    id: str | None = None
    batch: int | None = None
    created_at: str | None = None
    keeps_files: bool = True


def table_name(step: str, name: str) -> str:
    """The name of a state's table in a snapshot."""
    return f"{step}/{name}"


def shared_name(step: str, name: str) -> str:
    """The name of the table of a setting or a broadcast state."""
    return table_name(step, f"shared/{name}")


def capture(session: SparkSession, checkpoint: Checkpoint, wanted: Capture) -> Manifest:
    """Write a snapshot; it exists when this returns, and not before. Raises CheckpointError, SnapshotError."""
    lineage = _lineage_of(checkpoint)
    store = open_store(wanted.uri)
    if store.exists(MANIFEST):
        raise AlreadyThereError(f"There is a snapshot in {wanted.uri} already. Choose another place.")
    there = store.list()
    for attempt in itertools.count(1):
        number = committed(checkpoint, lineage, wanted.batch)
        try:
            return _capture_batch(session, checkpoint, lineage, wanted, number)
        except OvertakenError:
            # The newest micro-batch needs what is newest; only a job that stands in its way again and again wins.
            if wanted.batch is not None or attempt == _MOST_ATTEMPTS:
                raise
        except CheckpointError:
            # Spark's first reading takes a while, in which a quick job may have gone on so far that the micro-batch is
            # no longer kept. Its next reading is quick.
            if _is_kept(checkpoint, lineage, number) or wanted.batch is not None or store.list() != there:
                raise
    raise AssertionError


def _capture_batch(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, wanted: Capture, number: int
) -> Manifest:
    state = read_described(checkpoint.folder)
    # First, since the sources of a running job forget what is behind them.
    files: tuple[FileEntry, ...] = ()
    if wanted.keeps_files and wanted.kind == "savepoint":
        positions = positions_of(checkpoint, lineage, number)
        files = copy_own_files(checkpoint.folder, positions, open_store(wanted.uri))
    elif wanted.keeps_files:
        files = copy_topic_ids(checkpoint.folder, open_store(wanted.uri))
    contents = Contents(
        kind=wanted.kind,
        id=wanted.id or f"{lineage.job}-{number}",
        job=lineage.job,
        batch=number,
        key_groups=lineage.key_groups,
        format=wanted.format,
        tables=(),
        created_at=wanted.created_at,
        files=files,
        positions=positions_of(checkpoint, lineage, number),
        steps={name: msgspec.to_builtins(step) for name, step in state.steps.items()},
    )
    read = functools.partial(read_step, session, checkpoint, number - lineage.first_batch)
    return assemble(wanted, contents, state, read)


def assemble(wanted: Capture, contents: Contents, state: JobState, read: StepReader) -> Manifest:
    """Write the tables of all steps, which each slot does for its own part of what `read` finds, and then commit."""
    store = open_store(wanted.uri)
    captured = [
        [
            msgspec.msgpack.decode(body, type=_Result)
            for body in read(step.node, _Task(name, step, wanted.uri, wanted.format))
        ]
        for name, step in state.steps.items()
    ]
    tables, parts = _together(state, captured, store, wanted.format)
    return commit(store, dataclasses.replace(contents, tables=tables), parts)


def check_committed(checkpoint: Checkpoint, batch: int | None) -> None:
    """Raise CheckpointError when the micro-batch, or with None any, is not there to be captured. Needs no Spark."""
    committed(checkpoint, _lineage_of(checkpoint), batch)


def _lineage_of(checkpoint: Checkpoint) -> Lineage:
    lineage = checkpoint.stored_lineage()
    if lineage is None:
        raise CheckpointError(f"{checkpoint.folder} is not a checkpoint of a job.")
    return lineage


def committed(checkpoint: Checkpoint, lineage: Lineage, wanted: int | None) -> int:
    """The micro-batch to capture, by its number in the life of the checkpoint."""
    numbers = [lineage.first_batch + n for n in batch_numbers(checkpoint.spark_folder / "commits")]
    if not numbers and lineage.origin.has_state and wanted in (None, lineage.first_batch - 1):
        return lineage.first_batch - 1
    if not numbers:
        raise CheckpointError(
            f"The job in {checkpoint.folder} has committed no micro-batch yet, so there is no state to capture. Let it "
            "process something first."
        )
    if wanted is None:
        return numbers[-1]
    if wanted not in numbers:
        raise CheckpointError(
            f"The checkpoint {checkpoint.folder} does not keep the state after micro-batch {wanted}; it keeps "
            f"{numbers[0]} to {numbers[-1]}."
        )
    return wanted


def _is_kept(checkpoint: Checkpoint, lineage: Lineage, number: int) -> bool:
    """Whether a micro-batch is still among those to which the checkpoint can go back."""
    return number - lineage.first_batch in batch_numbers(checkpoint.spark_folder / "commits")


def positions_of(checkpoint: Checkpoint, lineage: Lineage, number: int) -> dict[str, Any]:
    """Where each stream ends in a micro-batch, as Spark's offset log has it."""
    if number < lineage.first_batch:
        return lineage.positions
    path = checkpoint.spark_folder / "offsets" / str(number - lineage.first_batch)
    # A stream of which Spark has read nothing yet is where it began.
    return {**lineage.positions, **read_offsets(path, lineage.streams)}


class _Result(msgspec.Struct, array_like=True):
    """What a slot gives: a part of a table, or what it keeps once for the step, or data that waits there."""

    part: PartEntry | None = None
    header: bytes | None = None
    held: bytes | None = None
    clock_ms: int | None = None


@dataclass(frozen=True)
class _Task:
    """Writes the parts of one slot, in a worker."""

    name: str
    step: DescribedStep
    uri: str
    format: SnapshotFormat

    def __call__(self, number: int, entries: Mapping[str, Content]) -> Iterator[bytes]:
        stored = FrozenEntries(entries)
        store = open_store(self.uri)
        written = [
            (info, Parts(store, info, number, self.format)) for info in keyed_tables(self.name, self.step)
        ]
        for run in stored_runs(self.step.schema, stored):
            for part in _written(run, written):
                yield msgspec.msgpack.encode(_Result(part=part))
        tables = SlotTables(self.step.schema, stored, only=_NOTHING)
        if tables.clock_ms is not None:
            yield msgspec.msgpack.encode(_Result(clock_ms=tables.clock_ms))
        header = header_of(tables)
        if header != Header():
            yield msgspec.msgpack.encode(_Result(header=header.dump()))
            for number in range(header.held_parts):
                yield msgspec.msgpack.encode(_Result(held=bytes(entries[held_name(number)])))


def _written(run: dict[int, GroupTable], tables: Sequence[tuple[TableInfo, Parts]]) -> list[PartEntry]:
    """Write the rows of some key groups, whose tables are used up: each is let go when its rows have been taken."""
    rows = sorted_by_key(pa.concat_batches([run.pop(group).all_rows() for group in sorted(run)]))
    return [part for info, parts in tables for part in parts.write([_part_of(rows, info)])]


@dataclass(frozen=True)
class FrozenEntries:
    """Stored entries that are only read."""

    entries: Mapping[str, Content]

    def get(self, name: str) -> Content | None:
        """The bytes of a name."""
        return self.entries.get(name)

    def put(self, name: str, content: bytes) -> None:  # noqa: ARG002  # as Entries
        """Nothing is written here."""
        raise AssertionError(name)

    def remove(self, name: str) -> None:
        """Nothing is written here."""
        raise AssertionError(name)


def keyed_tables(name: str, step: DescribedStep) -> list[TableInfo]:
    """The tables of a step's keyed states."""
    return [
        TableInfo(table_name(name, state), name, "timers" if state == TIMERS else "state", found.schema)
        for state, found in step.states.items()
    ]


def _part_of(rows: pa.RecordBatch, info: TableInfo) -> pa.RecordBatch:
    """The keys that hold a value of one state, with it."""
    state = info.name.removeprefix(f"{info.step}/")
    column = rows.column(state)
    held = rows.filter(column.is_valid()) if column.null_count else rows
    columns = [held.column(KEY_COLUMN), held.column(state)]
    if EXPIRES_AT in info.schema.names:
        columns.append(held.column(expires_name(state)).cast(info.schema.field(EXPIRES_AT).type))
    return pa.RecordBatch.from_arrays(columns, schema=info.schema)


def read_step(
    session: SparkSession, checkpoint: Checkpoint, batch: int, node: str, reader: SlotReader
) -> list[bytes]:
    """Read the state of a step after what Spark calls a micro-batch: of slots that have not run yet, their seed."""
    slots: set[int] = set()
    found: list[bytes] = []
    if batch >= 0:
        slots, found = read_slots(session, checkpoint.spark_folder, batch, node, reader)
    lineage = checkpoint.stored_lineage()
    if lineage is None or not lineage.origin.has_state:
        return found
    firsts = first_key_groups(lineage.key_groups, lineage.parallelism)
    left = {number: group for number, group in firsts.items() if number not in slots}
    return [*found, *read_seed(checkpoint.seed, node, reader, left)]


def _together(
    state: JobState, captured: Sequence[Sequence[_Result]], store: Store, form: SnapshotFormat
) -> tuple[list[TableInfo], list[PartEntry]]:
    """All tables, and all parts: those that the slots have written, and those of what they keep once for the step."""
    tables: list[TableInfo] = []
    parts: list[PartEntry] = []
    for (name, step), results in zip(state.steps.items(), captured, strict=True):
        tables += keyed_tables(name, step)
        parts += [result.part for result in results if result.part is not None]
        headers = [Header.of(result.header) for result in results if result.header is not None]
        header = merged(headers)
        for info, rows in [
            *_shared_tables(name, step, header.shared),
            (
                TableInfo(table_name(name, HEADER), name, "internal", _CONTENT, ()),
                _contents([msgspec.structs.replace(header, shared=None).dump()]),
            ),
            (
                TableInfo(table_name(name, HELD), name, "internal", _CONTENT, ()),
                _contents(_held_one_by_one(result.held for result in results)),
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
        yield info, [_rows_of(state, described, found)]


def _rows_of(name: str, state: DescribedState, found: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of a shared state as it is declared now, of which the slot may not have heard yet."""
    schema = state.schema
    rows = found.get(name)
    if rows is None and state.renamed_from is not None:
        rows = found.get(state.renamed_from)
    if rows is None:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    return pa.RecordBatch.from_arrays(conformed(rows, schema).columns, schema=schema)


def _held_one_by_one(held: Iterable[bytes | None]) -> Iterator[bytes]:
    """Data that waits, each block by itself, so that it is the same however many slots share the key groups."""
    for content in held:
        if content is not None:
            for row in msgspec.msgpack.decode(content, type=list[PackedRow]):
                yield msgspec.msgpack.encode([row])


def _clock(results: Sequence[_Result]) -> list[pa.RecordBatch]:
    """The largest event time that the step has seen."""
    times = [result.clock_ms for result in results if result.clock_ms is not None]
    return [pa.RecordBatch.from_arrays([pa.array([max(times)], pa.int64())], schema=_CLOCK)] if times else []


def _contents(found: Iterable[bytes | None]) -> Iterator[pa.RecordBatch]:
    for content in found:
        if content is not None:
            yield pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], schema=_CONTENT)
