"""Runs a step on one key group, as a slot does that has no other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from penstock.engine.slot import Slot
from penstock.engine.slot_run import BatchTime, SlotRun
from penstock.engine.step import StepCore, StepResult
from penstock.operators.record_blocks import Block
from penstock.state.group_state import GroupState
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries, Stored

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)

__all__ = ["group_state", "run_group"]


def run_group(
    core: StepCore, key_group: int, blocks: Sequence[Block], stored: Mapping[str, bytes] | None
) -> tuple[StepResult, Stored]:
    """One micro-batch of one key group: what came of it, and what is stored behind it."""
    entries = MemoryEntries(dict(stored or {}))
    tables = SlotTables(core.state_schema, entries)
    result = SlotRun(core, Slot((key_group,), True), tables, BatchTime(NOW)).process(key_group, blocks)
    if tables.changed:
        tables.store()
    return result, entries.stored


def group_state(core: StepCore, key_group: int, stored: Mapping[str, bytes]) -> GroupState:
    """The state of a key group in what is stored."""
    tables = SlotTables(core.state_schema, MemoryEntries(dict(stored)))
    return GroupState(core.specs, tables.table(key_group))
