"""The stored log of a slot: any worker reads what was written, and the cost follows the changes."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import StateError
from penstock.state import slot_log, slot_tables
from penstock.state.group_table import GroupTable
from penstock.state.kept_slots import SlotCache
from penstock.state.slot_tables import CachedSlot, SlotTables
from penstock.testing.memory_entries import MemoryEntries

SCHEMA = pa.schema([("key", pa.string()), ("a", pa.int64()), ("b", pa.list_(pa.string()))])
PAIR = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string(), nullable=False)])
Model = dict[int, dict[Any, tuple[Any, Any]]]


def rows(changes: dict[Any, tuple[Any, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [list(changes), [a for a, _ in changes.values()], [b for _, b in changes.values()]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def content(tables: SlotTables) -> Model:
    found: Model = {}
    for group, table in tables.tables.items():
        batch = table.all_rows()
        keys = [tuple(k.values()) if isinstance(k, dict) else k for k in batch.column(0).to_pylist()]
        if keys:
            columns = (batch.column(1).to_pylist(), batch.column(2).to_pylist())
            found[group] = dict(zip(keys, zip(*columns, strict=True), strict=True))
    return found


def copied(kept: CachedSlot | None) -> CachedSlot | None:
    """Return a copy that changes independently, as another worker's."""
    if kept is None:
        return None
    tables = {group: GroupTable.of(table.all_rows()) for group, table in kept.tables.items()}
    return CachedSlot(kept.number, kept.digest, kept.header, kept.header_number, tables)


def apply(model: Model, group: int, changes: dict[Any, tuple[Any, Any]]) -> None:
    held = model.setdefault(group, {})
    for key, values in changes.items():
        if values == (None, None):
            held.pop(key, None)
        else:
            held[key] = values
    if not held:
        del model[group]


VALUES = st.tuples(
    st.none() | st.integers(0, 9), st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2)
)
CHANGES = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.integers(0, 12), VALUES, max_size=6), max_size=3
)
BATCHES = st.lists(st.tuples(CHANGES, CHANGES, st.none() | st.binary(max_size=3)), min_size=1, max_size=12)


@examples(40)
@given(
    batches=BATCHES,
    workers=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    fails=st.sets(st.integers(0, 11)),
    key_kind=st.sampled_from(["text", "pair"]),
    collides=st.booleans(),
    max_bytes=st.sampled_from([0, 1_000, 1 << 30]),
)
def test_any_worker_finds_what_was_stored(
    batches: Any, workers: list[int], fails: set[int], key_kind: str, collides: bool, max_bytes: int
) -> None:
    """The worker may be cold, up to date, behind, or ahead because its last micro-batch was not committed;
    also after full writes.
    """
    schema = SCHEMA if key_kind == "text" else SCHEMA.set(0, pa.field("key", PAIR))
    of_key = (lambda n: f"k{n}") if key_kind == "text" else (lambda n: (n, f"k{n % 3}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_tables, "_FEW_VERSIONS", 4)
        patch.setattr(slot_tables, "_SMALL_BYTES", 200)
        patch.setattr(slot_log, "_PIECE_BYTES", 150)
        patch.setattr("penstock.state.key_index._FEW", 2)
        patch.setattr("penstock.state.group_table._FEW", 3)
        if collides:
            patch.setattr("penstock.state.key_index.key_codes", _few_codes)
        stored: dict[str, bytes] = {}
        model: Model = {}
        header: bytes | None = None
        memories = [SlotCache(max_bytes) for _ in range(3)]
        for number, (first, second, new_header) in enumerate(batches):
            worker = workers[number]
            entries = MemoryEntries(dict(stored))
            memory = memories[worker]
            tables = SlotTables(schema, entries, memory.take("slot"), memory)
            assert content(tables) == model
            assert tables.header == header
            after = copy.deepcopy(model)
            for changes in (first, second):
                for group, by_number in changes.items():
                    named = {of_key(n): values for n, values in by_number.items()}
                    named = {k: v for k, v in named.items() if v != (None, None) or k in after.get(group, {})}
                    if named:
                        tables.put(group, rows(named, schema))
                        apply(after, group, named)
            tables.put_header(new_header)
            assert content(tables) == after
            assert tables.keys == sum(map(len, after.values()))
            if tables.changed:
                tables.store()
            memory.put("slot", tables.keep())
            if number not in fails:
                stored, model, header = entries.stored, after, new_header
        assert content(SlotTables(schema, MemoryEntries(stored))) == model


def _few_codes(keys: pa.Array) -> Any:
    from penstock.state.key_groups import key_hashes

    return key_hashes(keys) % 3


def batch_of(start: int, count: int, value: int) -> pa.RecordBatch:
    return rows({f"key {start + n}": (value, None) for n in range(count)})


def test_writing_costs_by_what_changes() -> None:
    """With a hundred times as many keys, changing a few writes as many bytes, and the log stays bounded."""
    written = {}
    for keys in (1_000, 100_000):
        entries = MemoryEntries({})
        tables = SlotTables(SCHEMA, entries)
        for group in range(8):
            tables.put(group, batch_of(0, keys // 8, 0))
        tables.store()
        held = sum(map(len, entries.stored.values()))
        sizes = []
        for number in range(100):
            before = dict(entries.stored)
            tables = SlotTables(SCHEMA, entries, tables.keep())
            for group in range(8):
                tables.put(group, batch_of(number % (keys // 8 - 5), 5, number))
            tables.store()
            sizes.append(sum(len(v) for k, v in entries.stored.items() if before.get(k) != v))
            assert sum(map(len, entries.stored.values())) < 4 * held + 600_000
        written[keys] = sum(sizes) / len(sizes)
    assert written[100_000] < 3 * written[1_000] + 300_000


def test_a_mask_that_hides_nothing_changes_no_stored_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt may compute changes with an all-valid null mask and another without; a replay must store
    the same.
    """
    monkeypatch.setattr(slot_log, "_PIECE_BYTES", 20_000)
    changes = batch_of(0, 4_000, 1)
    found = []
    for attempt in (changes, _with_mask(changes)):
        entries = MemoryEntries({})
        tables = SlotTables(SCHEMA, entries)
        tables.put(0, batch_of(0, 10_000, 0))
        tables.store()
        tables.put(0, attempt)
        tables.store()
        found.append(entries.stored)
    assert _with_mask(changes).nbytes > changes.nbytes
    assert found[0] == found[1]


def _with_mask(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, with an explicit validity bit for each number."""
    column = batch.column(1)
    mask = pa.py_buffer(b"\xff" * (len(column) // 8 + 1))
    masked = pa.Array.from_buffers(column.type, len(column), [mask, column.buffers()[1]])
    return batch.set_column(1, batch.schema.field(1), masked)


def test_a_worker_that_is_behind_reads_only_what_came_since() -> None:
    """A cached slot one version behind reads the head and one version; a cold worker reads everything."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    for group in range(8):
        tables.put(group, batch_of(0, 1_000, 0))
    tables.store()
    behind = copied(tables.keep())
    for number in range(20):
        tables = SlotTables(SCHEMA, entries, tables.keep())
        tables.put(number % 8, batch_of(number, 3, 1))
        tables.store()
        entries.reads = 0
        again = SlotTables(SCHEMA, entries, behind)
        assert entries.reads == 2
        assert content(again) == content(tables)
        behind = copied(again.keep())
    entries.reads = 0
    assert content(SlotTables(SCHEMA, entries)) == content(tables)
    assert entries.reads > 10


def test_tables_beyond_the_bound_are_on_disk() -> None:
    """Only the index counts in memory then, 16 bytes per key, and all rows are still found."""
    memory = SlotCache(0)
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries, None, memory)
    for group in range(4):
        tables.put(group, batch_of(0, 5_000, group))
    tables.store()
    kept = tables.keep()
    assert kept.nbytes == 4 * 5_000 * 16
    again = SlotTables(SCHEMA, entries, kept, memory)
    again.put(2, batch_of(10, 2, 7))
    found = again.table(2).rows(again.table(2).find(pa.array(["key 9", "key 10", "no key"])))
    assert found.column("a").to_pylist() == [2, 7, None]


def test_what_does_not_fit_is_refused() -> None:
    """Refused are: another type, a state no longer declared, another format, damage, and a missing version."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    tables.put(1, rows({"k": (1, None)}))
    tables.store()

    def load(schema: pa.Schema = SCHEMA, **changed: bytes | None) -> SlotTables:
        stored = {k: v for k, v in {**entries.stored, **changed}.items() if v is not None}
        return SlotTables(schema, MemoryEntries(stored))

    with pytest.raises(
        StateError, match="'a' is declared as string, and int64 is stored: not every value fits"
    ):
        load(SCHEMA.set(1, pa.field("a", pa.string())))
    assert load(SCHEMA.remove(1)).table(1).keys == 0, "what is no longer declared is left behind"
    with pytest.raises(StateError, match="has the format 9; this penstock reads 2"):
        load(head=bytes([entries.stored["head"][0], 9]) + entries.stored["head"][2:])
    with pytest.raises(StateError, match="cannot be read"):
        load(head=b"nonsense")
    version = next(name for name in entries.stored if name.startswith("version"))
    with pytest.raises(StateError, match="A version of the stored state cannot be read"):
        load(**{version: entries.stored[version][:-40]})
    with pytest.raises(StateError, match="The version 1 of the stored state is missing"):
        load(**{version: None})
    added = load(SCHEMA.append(pa.field("c", pa.float64())))
    assert added.table(1).all_rows().to_pylist() == [{"key": "k", "a": 1, "b": None, "c": None}]
