"""Kept slots: a worker's memory and disk files stay bounded, however many slots it has served."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.state.group_table import GroupTable
from penstock.state.kept_slots import SlotCache
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

KEYS = 2_000
SCHEMA = GroupTable.of(pa.record_batch({"key": ["k"], "a": [1]})).schema


class Slots:
    """The slots of a step, all of which one worker may serve."""

    def __init__(self, memory: SlotCache, count: int, keys: int = KEYS) -> None:
        self.memory = memory
        self.keys = keys
        self.entries = [MemoryEntries({}) for _ in range(count)]
        self.max_bytes = 0

    def serve(self, slot: int, value: int) -> int:
        """Change every key of a slot; return how many entries the worker had to read for it."""
        entries = self.entries[slot]
        entries.reads = 0
        tables = SlotTables(SCHEMA, entries, self.memory.take(slot), self.memory)
        held = [] if value == 0 else tables.table(0).all_rows().column("a").to_pylist()
        assert held == [value - 1] * (0 if value == 0 else self.keys)
        reads = entries.reads
        names = [f"slot {slot} key {n:06d}" for n in range(self.keys)]
        tables.put(0, pa.record_batch([pa.array(names), pa.array([value] * self.keys)], schema=SCHEMA))
        tables.store()
        self.memory.put(slot, tables.keep())
        self.max_bytes = max(self.max_bytes, self.memory.nbytes)
        return reads


def spilled_files() -> int:
    gc.collect()
    return sum("penstock-state-" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="files are seen by the mappings of this process"
)
def test_many_slots_through_one_worker_stay_within_the_bound() -> None:
    """The bound includes indexes; files of evicted slots are deleted."""
    before = spilled_files()
    slots = Slots(SlotCache(150_000), 30)
    for slot in range(30):
        slots.serve(slot, 0)
    assert slots.max_bytes <= 150_000
    assert spilled_files() - before <= 150_000 // (16 * KEYS)
    for slot in range(30):
        slots.serve(slot, 1)
    assert slots.max_bytes <= 150_000


def test_what_other_workers_have_goes_before_what_this_one_uses() -> None:
    """With room for two slots, the one no longer served is evicted; the others are never read again."""
    size = Slots(SlotCache(), 1)
    size.serve(0, 0)
    slots = Slots(SlotCache(int(2.5 * size.max_bytes)), 3)
    slots.serve(0, 0)
    for value in range(6):
        reads = [slots.serve(slot, value) for slot in (1, 2)]
        # Only the head is read.
        assert reads == [1, 1]
    assert set(slots.memory._kept) == {1, 2}


def test_a_slot_that_nobody_served_for_long_goes_though_there_is_room() -> None:
    """Its stored state has too many newer versions for the cached one to be of use."""
    slots = Slots(SlotCache(), 2, keys=10)
    slots.serve(0, 0)
    for value in range(33):
        slots.serve(1, value)
    assert set(slots.memory._kept) == {0, 1}
    slots.serve(1, 33)
    assert set(slots.memory._kept) == {1}


def test_a_slot_beyond_the_bound_by_itself_is_kept_alone() -> None:
    """A worker that serves a single slot does not reread all of it in each micro-batch."""
    slots = Slots(SlotCache(0), 2)
    slots.serve(0, 0)
    assert slots.serve(0, 1) == 1
    slots.serve(1, 0)
    assert set(slots.memory._kept) == {1}
    assert slots.memory.nbytes == 16 * KEYS
