"""State restore: turn a snapshot into the first stored state of a job, for its present key groups and tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.durable import make_folder, sync_folder
from penstock.checkpoints.described_state import EXPIRES_AT, DescribedStep, JobState
from penstock.checkpoints.evolution import Change
from penstock.engine.slot import Header, held_name, put_header
from penstock.errors import SnapshotError
from penstock.records.types import empty_like
from penstock.runtime.packed_rows import PackedRow, split_by_key_group
from penstock.runtime.seed import SeedEntries, seed_folder
from penstock.runtime.slots import slots
from penstock.savepoints.captured_tables import CLOCK, HEADER, HELD, shared_name, table_name
from penstock.savepoints.spread_rows import SpreadRows, ranges_of
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_reader import read_manifest, read_table
from penstock.snapshots.stores import Store, open_store
from penstock.state.expiry import expires_name
from penstock.state.group_table import KEY_COLUMN, held_rows
from penstock.state.key_groups import key_groups
from penstock.state.key_index import key_values
from penstock.state.shared import shared_of
from penstock.state.slot_tables import SlotTables
from penstock.state.unions import UnionListState, unions
from penstock.state.widening import widen

__all__ = ["Snapshot", "states_of", "write_seed"]

# The bytes of a snapshot that are in memory at once.
_RANGE_BYTES: Final = 16 << 20
# Files are compressed: repetitive texts may need many times their size in memory.
_EXPANDED: Final = 16
# The bytes in one version of a seed.
_VERSION_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Snapshot:
    """A snapshot and its place."""

    store: Store
    manifest: Manifest

    @classmethod
    def at(cls, uri: str) -> Snapshot:
        """Open the snapshot at a place. Raises SnapshotError when there is none, or it is damaged."""
        store = open_store(uri)
        return cls(store, read_manifest(store))


def states_of(manifest: Manifest) -> JobState:
    """Return the states of a snapshot, as its manifest describes them."""
    steps = {name: msgspec.convert(step, DescribedStep) for name, step in manifest.steps.items()}
    return JobState(manifest.job, manifest.key_groups, steps)


def write_seed(
    snapshot: Snapshot, declared: JobState, parallelism: int, changes: Sequence[Change], folder: Path
) -> dict[str, int]:
    """Write the stored state of each slot of a job into a folder; return the number of keys of each step.

    `declared` is what the job declares, and `changes` says what happens to each state of the snapshot. Raises
    SnapshotError when the snapshot cannot be read, or a row does not fit.
    """
    keys = {}
    for name, step in declared.steps.items():
        taken = {c.state: c.found for c in changes if c.step == name and c.found and c.outcome != "dropped"}
        if name in snapshot.manifest.steps:
            seeding = _Seeding(snapshot, name, step, taken, declared.key_groups)
            keys[name] = seeding.write(folder, parallelism)
    make_folder(folder)
    sync_folder(folder)
    return keys


@dataclass(frozen=True)
class _Seeding:
    """The seeding of one step; `taken` maps its states to their names in the snapshot."""

    snapshot: Snapshot
    name: str
    step: DescribedStep
    taken: Mapping[str, str]
    key_groups: int

    def write(self, folder: Path, parallelism: int) -> int:
        """Write the entries of all slots, some key groups at a time; return the number of keys."""
        found = [
            slot
            for _, slot in sorted(
                slots(self.key_groups, parallelism).items(), key=lambda item: item[1].key_groups[0]
            )
        ]
        ranges = ranges_of([slot.key_groups for slot in found], self._ranges())
        place = seed_folder(folder, self.step.node, 0).parent
        make_folder(place)
        held = self._held()
        clock = [row for batch in self._read(CLOCK) for row in batch.column(0).to_pylist()]
        keys = 0
        with tempfile.TemporaryDirectory(prefix=".spread-", dir=folder) as name:
            spread = self._spread(SpreadRows(ranges, Path(name)))
            header = msgspec.structs.replace(self._header(), unions=self._unions(spread, len(ranges)))
            for slot in found:
                mine = [row for row in held if row.key_group in slot.own]
                writer = _SlotWriter(
                    seed_folder(folder, self.step.node, slot.key_groups[0]), self.step.schema
                )
                writer.begin(header, clock, mine)
                for number, groups in enumerate(ranges):
                    if groups[0] in slot.own:
                        rows = self._rows(spread, number)
                        keys += rows.num_rows
                        writer.put(self._by_group(rows))
                writer.end()
        sync_folder(place)
        return keys

    def _ranges(self) -> int:
        """Return the number of ranges of key groups into which to divide the rows, so that each is small."""
        names = {table_name(self.name, state) for state in self.taken.values()}
        size = sum(
            f.bytes for table in self.snapshot.manifest.tables if table.name in names for f in table.files
        )
        return min(-(-_EXPANDED * size // _RANGE_BYTES), self.key_groups)

    def _spread(self, spread: SpreadRows) -> SpreadRows:
        """Divide the rows of all tables by key group, with keys of the present type."""
        key_type = self.step.schema.field(KEY_COLUMN).type
        for field in list(self.step.schema)[1:]:
            for batch in self._read(self.taken.get(field.name)):
                keys = widen(batch.column("key"), key_type)
                columns = [keys, widen(batch.column("value"), field.type)]
                names = [KEY_COLUMN, field.name]
                expires = expires_name(field.name)
                if expires in self.step.schema.names and EXPIRES_AT in batch.schema.names:
                    columns.append(batch.column(EXPIRES_AT).cast(pa.int64()))
                    names.append(expires)
                rows = pa.RecordBatch.from_arrays(columns, names)
                spread.add(field.name, rows, key_groups(keys, self.key_groups))
        return spread

    def _rows(self, spread: SpreadRows, number: int) -> pa.RecordBatch:
        """Return the rows of the step's table in a range of key groups: all states of each key."""
        schema = self.step.schema
        key_type = schema.field(KEY_COLUMN).type
        found: dict[str, tuple[pa.Array, pa.Array]] = {}
        for field in list(schema)[1:]:
            batches = list(spread.rows(field.name, number))
            if batches:
                rows = pa.concat_batches(batches)
                keys = rows.column(KEY_COLUMN)
                found |= {name: (keys, rows.column(name)) for name in rows.schema.names[1:]}
        if not found:
            return empty_like(schema)
        keys, places = _unite({name: keys for name, (keys, _) in found.items()}, key_type)
        columns = [keys]
        for field in list(schema)[1:]:
            if field.name in found:
                columns.append(found[field.name][1].take(places[field.name]))
            else:
                columns.append(pa.nulls(len(keys), field.type))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return rows.filter(pa.array(held_rows(rows)))

    def _by_group(self, rows: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        groups = key_groups(rows.column(KEY_COLUMN), self.key_groups)
        return dict(split_by_key_group(rows, groups, self.key_groups))

    def _unions(self, spread: SpreadRows, ranges: int) -> bytes | None:
        """Return the unions of the step, which every slot gets in full."""
        states = self._union_states()
        by_group: dict[int, pa.RecordBatch] = {}
        for number in range(ranges if states else 0):
            by_group |= self._by_group(self._rows(spread, number).select([KEY_COLUMN, *states]))
        return unions(by_group, states)

    def _read(self, state: str | None) -> Iterator[pa.RecordBatch]:
        return iter(()) if state is None else self._read_table(table_name(self.name, state))

    def _read_table(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table batch by batch, since all of them may be too many for memory."""
        batches = read_table(self.snapshot.store, self.snapshot.manifest, name)
        return (batch for batch in batches if batch.num_rows)

    def _header(self) -> Header:
        """Return the state that every slot keeps once for the step."""
        contents = [row for batch in self._read(HEADER) for row in batch.column(0).to_pylist()]
        header = Header.of(contents[0]) if contents else Header()
        settings: dict[str, pa.RecordBatch] = {}
        mappings: dict[str, pa.RecordBatch] = {}
        for name in self.step.shared:
            stored = self.taken.get(name)
            batches = [] if stored is None else list(self._read_table(shared_name(self.name, stored)))
            if batches:
                rows = pa.concat_batches(batches)
                # Kinds of settings, such as a window's parameter, have different names.
                (mappings if "key" in rows.schema.names else settings)[name] = rows
        return msgspec.structs.replace(header, shared=shared_of(settings, mappings))

    def _union_states(self) -> dict[str, pa.DataType]:
        schema = self.step.schema
        return {
            name: schema.field(name).type
            for name, state in self.step.states.items()
            if state.kind == UnionListState.__name__
        }

    def _held(self) -> list[PackedRow]:
        contents = [row for batch in self._read(HELD) for row in batch.column(0).to_pylist()]
        if contents and self.snapshot.manifest.key_groups != self.key_groups:
            raise SnapshotError(
                f"The step {self.name!r} was paused when the snapshot {self.snapshot.manifest.id!r} was taken, and "
                "data waits in it by key group. Start with the same number of key groups, or take one after a resume."
            )
        return [row for content in contents for row in msgspec.msgpack.decode(content, type=list[PackedRow])]


class _SlotWriter:
    """Writes the entries of a slot, as one version of its log, or as several if that would be too much at once."""

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._place: Final = place
        self._schema: Final = schema
        self._entries: Final = SeedEntries(place)
        self._tables = SlotTables(schema, self._entries)
        self._waiting = 0

    def begin(self, header: Header, clock: Sequence[int], held: Sequence[PackedRow]) -> None:
        """Write the state that the slot keeps once for the step."""
        for clock_ms in clock:
            self._tables.advance_clock(clock_ms)
        if held:
            self._entries.put(held_name(0), msgspec.msgpack.encode(held))
        size = sum(len(row.body) for row in held)
        full = msgspec.structs.replace(header, held_bytes=size, held_parts=min(len(held), 1))
        put_header(self._tables, full)

    def put(self, by_group: Mapping[int, pa.RecordBatch]) -> None:
        """Add all rows of some key groups."""
        for group, rows in by_group.items():
            self._tables.put(group, rows)
            self._waiting += rows.nbytes
            if self._waiting >= _VERSION_BYTES:
                self._tables.store()
                # Stored tables need not stay in memory.
                kept = msgspec.structs.replace(self._tables.keep(), tables={}, row_cache=None)
                self._tables = SlotTables(self._schema, self._entries, kept)
                self._waiting = 0

    def end(self) -> None:
        """Store the rest, durably."""
        if self._tables.changed:
            self._tables.store()
        sync_folder(self._place)


def _unite(by_state: Mapping[str, pa.Array], key_type: pa.DataType) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Return all keys, each once, and for each state the row of each key's value."""
    if pa.types.is_struct(key_type):
        index: dict[Any, int] = {}
        for keys in by_state.values():
            for key in key_values(keys):
                index.setdefault(key, len(index))
        united = pa.array(list(index), key_type)
        places = {}
        for name, keys in by_state.items():
            at = np.full(len(index), -1, np.int64)
            at[[index[key] for key in key_values(keys)]] = np.arange(len(keys))
            places[name] = pa.array(at, mask=at < 0)
        return united, places
    united = pc.unique(pa.concat_arrays(list(by_state.values())))
    return united, {name: pc.index_in(united, value_set=keys) for name, keys in by_state.items()}
