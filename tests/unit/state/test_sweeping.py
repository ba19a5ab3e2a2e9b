"""Sweeping: expired rows leave the tables of a slot gradually, however many keys there are."""

from __future__ import annotations

import random
import statistics
import time

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.group_table import GroupTable
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("value@expires", pa.int64())])


def rows_of(keys: np.ndarray, expires: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys), pa.array(expires)], schema=SCHEMA)


@given(parts=st.lists(st.sets(st.integers(-500, 500), max_size=40), max_size=6), count=st.integers(1, 30))
def test_stretches_go_through_every_key_once(parts: list[set[int]], count: int) -> None:
    """Stretches follow the order of the codes, and are never longer than asked for."""
    table = GroupTable(SCHEMA)
    for part in parts:
        if part:
            keys = np.array(sorted(part), np.int64)
            table.upsert(rows_of(keys, keys))
    found: list[int] = []
    code: int | None = 0
    while code is not None:
        places, rows, code = table.scan(code, count, ["key"])
        assert len(places) <= count
        found += rows.column(0).to_pylist()
    assert len(found) == len(set(found)) == table.keys
    assert set(found) == set().union(*parts)
    assert found == sorted(found, key=lambda key: key % 2**64)


def test_the_same_rows_go_whoever_looks() -> None:
    """A worker that kept the tables and one that reread them write the same bytes."""
    stored: list[dict[str, bytes]] = []
    for is_cold in (False, True):
        order = random.Random(0)
        entries = MemoryEntries({})
        kept = None
        for number in range(40):
            tables = SlotTables(SCHEMA, entries, None if is_cold else kept)
            for group in (1, 2, 3):
                keys = np.array(order.sample(range(3000), 200), np.int64)
                tables.put(group, rows_of(keys, keys + 100 * number))
            tables.sweep({"value": 60 * number})
            tables.store()
            kept = tables.keep()
        stored.append(entries.stored)
    assert stored[0] == stored[1]


def test_a_million_expiring_keys_make_no_batch_long() -> None:
    """The keys are written, expire all at once, and are all removed in the end; the longest micro-batch is
    near the others.
    """
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    groups, keys, per_batch = 32, 1_000_000, 8_000
    for group in range(groups):
        mine = np.arange(group, keys, groups)
        tables.put(group, rows_of(mine, np.full(len(mine), 1_000)))
    tables.store()
    kept = tables.keep()
    order = np.random.default_rng(0)
    seconds, held = [], []
    for number in range(120):
        begin = time.process_time()
        tables = SlotTables(SCHEMA, entries, kept)
        touched = np.unique(order.integers(keys, 2 * keys, per_batch))
        for group in range(groups):
            mine = touched[touched % groups == group]
            tables.put(group, rows_of(mine, np.full(len(mine), 10_000 + 100 * number)))
        tables.sweep({"value": 2_000 + 100 * number})
        tables.store()
        kept = tables.keep()
        seconds.append(time.process_time() - begin)
        held.append(tables.keys)
    old = sum(
        (rows.column(0).to_numpy() < keys).sum() for rows in (t.all_rows() for t in tables.tables.values())
    )
    print(f"median {statistics.median(seconds):.4f} s, longest {max(seconds):.4f} s, old keys left {old}")
    assert old == 0
    assert max(seconds) < 10 * statistics.median(seconds)
