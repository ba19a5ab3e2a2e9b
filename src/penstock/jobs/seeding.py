"""Seeding: a snapshot becomes the first stored state of a job, for whatever key groups and tasks it has now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.durable import sync_folder
from penstock.errors import SnapshotError
from penstock.jobs.capturing import CLOCK, HEADER, HELD, shared_name, table_name
from penstock.jobs.described_state import EXPIRES_AT, DescribedStep, JobState
from penstock.jobs.evolution import Change
from penstock.operators.slot import Header, held_name, put_header
from penstock.runtime.packing import PackedRow, split_by_key_group
from penstock.runtime.seed import SeedEntries, seed_folder
from penstock.runtime.slots import slots
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.reading import read_manifest, read_table
from penstock.snapshots.stores import Store, open_store
from penstock.state.expiring import expires_name
from penstock.state.group_table import KEY_COLUMN, held_rows
from penstock.state.key_groups import key_groups
from penstock.state.key_index import key_values
from penstock.state.shared import shared_of
from penstock.state.slot_tables import SlotTables
from penstock.state.unions import UnionListState, unions
from penstock.state.widening import converted

__all__ = ["Snapshot", "described_in", "write_seed"]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot, and where it is."""

    store: Store
    manifest: Manifest

    @classmethod
    def at(cls, uri: str) -> Snapshot:
        """The snapshot at a place. Raises SnapshotError when there is none, or it is damaged."""
        store = open_store(uri)
        return cls(store, read_manifest(store))


def described_in(manifest: Manifest) -> JobState:
    """The states that a snapshot has, as it describes them."""
    steps = {name: msgspec.convert(step, DescribedStep) for name, step in manifest.steps.items()}
    return JobState(manifest.job, manifest.key_groups, steps)


def write_seed(
    snapshot: Snapshot, declared: JobState, parallelism: int, changes: Sequence[Change], folder: Path
) -> dict[str, int]:
    """Write the stored state of each slot of a job into a folder; gives the number of keys of each step.

    `declared` is what the job declares, and `changes` says what becomes of each state of the snapshot. Raises
    SnapshotError when it cannot be read, or a row does not fit.
    """
    keys = {}
    for name, step in declared.steps.items():
        taken = {c.state: c.found for c in changes if c.step == name and c.found and c.outcome != "dropped"}
        if name in snapshot.manifest.steps:
            seeding = _Seeding(snapshot, name, step, taken, declared.key_groups)
            keys[name] = seeding.write(folder, parallelism)
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder)
    return keys


@dataclass(frozen=True)
class _Seeding:
    """One step."""

    snapshot: Snapshot
    name: str
    step: DescribedStep
    taken: Mapping[str, str]
    key_groups: int

    def write(self, folder: Path, parallelism: int) -> int:
        """Write the entries of all slots."""
        rows = self._rows()
        groups = key_groups(rows.column(KEY_COLUMN), self.key_groups)
        by_group = dict(split_by_key_group(rows, groups, self.key_groups))
        header = msgspec.structs.replace(self._header(), unions=unions(by_group, self._union_states()))
        held = self._held()
        clock = [row for batch in self._read(CLOCK) for row in batch.column(0).to_pylist()]
        for slot in slots(self.key_groups, parallelism).values():
            place = seed_folder(folder, self.step.node, slot.key_groups[0])
            place.mkdir(parents=True, exist_ok=True)
            entries = SeedEntries(place)
            tables = SlotTables(self.step.schema, entries)
            for group in slot.key_groups:
                if group in by_group:
                    tables.put(group, by_group[group])
            for clock_ms in clock:
                tables.advance_clock(clock_ms)
            mine = [row for row in held if row.key_group in slot.own]
            if mine:
                entries.put(held_name(0), msgspec.msgpack.encode(mine))
            size = sum(len(row.body) for row in mine)
            full = msgspec.structs.replace(header, held_bytes=size, held_parts=min(len(mine), 1))
            put_header(tables, full)
            if tables.changed:
                tables.store()
            sync_folder(place)
        sync_folder(seed_folder(folder, self.step.node, 0).parent)
        return int(rows.num_rows)

    def _rows(self) -> pa.RecordBatch:
        """The rows of the step's table: of every key all states."""
        schema = self.step.schema
        key_type = schema.field(KEY_COLUMN).type
        found: dict[str, tuple[pa.Array, pa.Array]] = {}
        for field in list(schema)[1:]:
            batches = self._read(self.taken.get(field.name))
            if batches:
                table = pa.Table.from_batches(batches).combine_chunks()
                keys = converted(_column(table, "key"), key_type)
                found[field.name] = keys, converted(_column(table, "value"), field.type)
                expires = expires_name(field.name)
                if expires in schema.names and EXPIRES_AT in table.column_names:
                    found[expires] = keys, _column(table, EXPIRES_AT).cast(pa.int64())
        if not found:
            return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        keys, places = _united({name: keys for name, (keys, _) in found.items()}, key_type)
        columns = [keys]
        for field in list(schema)[1:]:
            if field.name in found:
                columns.append(found[field.name][1].take(places[field.name]))
            else:
                columns.append(pa.nulls(len(keys), field.type))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return rows.filter(pa.array(held_rows(rows)))

    def _read(self, state: str | None) -> list[pa.RecordBatch]:
        return [] if state is None else self._read_table(table_name(self.name, state))

    def _read_table(self, name: str) -> list[pa.RecordBatch]:
        batches = read_table(self.snapshot.store, self.snapshot.manifest, name)
        return [batch for batch in batches if batch.num_rows]

    def _header(self) -> Header:
        """What every slot keeps once for the step."""
        contents = [row for batch in self._read(HEADER) for row in batch.column(0).to_pylist()]
        header = Header.of(contents[0]) if contents else Header()
        settings: dict[str, pa.RecordBatch] = {}
        mappings: dict[str, pa.RecordBatch] = {}
        for name, state in self.step.shared.items():
            stored = self.taken.get(name)
            batches = [] if stored is None else self._read_table(shared_name(self.name, stored))
            if batches:
                rows = pa.concat_batches(batches)
                (settings if state.kind == "Setting" else mappings)[name] = rows
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
                "data waits in it by key group. Start with as many key groups as before, or take one after a resume."
            )
        return [row for content in contents for row in msgspec.msgpack.decode(content, type=list[PackedRow])]


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _united(by_state: Mapping[str, pa.Array], key_type: pa.DataType) -> tuple[pa.Array, dict[str, pa.Array]]:
    """All keys, each once, and for each state where the value of each key is."""
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
