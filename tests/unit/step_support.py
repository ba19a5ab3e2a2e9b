"""Runs a step on one key group, as a slot does that has no other."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.operators.blocks import Block
from penstock.operators.group_run import open_group
from penstock.operators.slot import Slot
from penstock.operators.slot_run import SlotRun
from penstock.operators.step import StepCore, StepResult
from penstock.state.group_state import Cursor, GroupState
from penstock.state.group_tables import GroupTables

__all__ = ["group_state", "run_group"]


def run_group(core: StepCore, key_group: int, blocks: Sequence[Block], stored: bytes | None) -> StepResult:
    """One micro-batch of one key group, whose table is `stored` before."""
    tables = GroupTables(None)
    if stored is not None:
        tables.put(key_group, 1, stored)
    return SlotRun(core, Slot((key_group,), True), tables).process(key_group, blocks)


def group_state(core: StepCore, stored: bytes | None) -> GroupState:
    """The state in a stored table."""
    return open_group(core, stored, Cursor(None, []))
