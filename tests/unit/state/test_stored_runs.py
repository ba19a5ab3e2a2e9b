"""Readers of a whole large state hold only a part of it in memory, however it was written."""

from __future__ import annotations

import pyarrow as pa

from penstock.state.slot_tables import SlotTables
from penstock.state.stored_runs import stored_runs
from penstock.testing.memory_entries import MemoryEntries

SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("text", pa.string())])
GROUPS = 4
TEXT = "x" * 1000


def notes(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(keys), "text": [f"{key}{TEXT}" for key in keys]}, SCHEMA)


def grown(batches: int) -> MemoryEntries:
    """Return a slot in which each micro-batch has stored one more key of each key group."""
    entries = MemoryEntries({})
    kept = None
    for number in range(batches):
        tables = SlotTables(SCHEMA, entries, kept)
        for group in range(GROUPS):
            tables.put(group, notes(number))
        tables.store()
        kept = tables.keep()
    return entries


def test_a_run_has_what_was_added_since_a_key_group_was_written_whole() -> None:
    """A run may be nearly all that the key group holds."""
    runs = list(stored_runs(SCHEMA, grown(12), 15_000))
    assert [sorted(run) for run in runs] == [[0], [1], [2], [3]]
    assert [table.keys for run in runs for table in run.values()] == [12] * GROUPS
    runs = list(stored_runs(SCHEMA, grown(12), 30_000))
    assert [sorted(run) for run in runs] == [[0, 1], [2, 3]]


def test_all_that_is_little_is_one_run() -> None:
    """A small state is read in one go."""
    entries = grown(3)
    (run,) = stored_runs(SCHEMA, entries)
    assert {group: table.keys for group, table in run.items()} == dict.fromkeys(range(GROUPS), 3)
    assert not list(stored_runs(SCHEMA, MemoryEntries({})))
