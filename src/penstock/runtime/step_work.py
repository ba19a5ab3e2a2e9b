"""Step work: the input of a step in one round of a slot, and its state from the first round to the last."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from dataclasses import dataclass, field

from penstock.control.admitted_commands import SlotCommand
from penstock.engine.slot import Slot
from penstock.models.kept_answers import SlotAnswers
from penstock.models.tallies import VersionTally
from penstock.operators.watermarks import WatermarkUpdate
from penstock.runtime.packed_rows import PackedRow
from penstock.state.slot_tables import SlotTables
from penstock.state.stored_blocks import Entries

__all__ = ["OpenSlot", "StepWork"]


@dataclass(frozen=True)
class StepWork:
    """The input of one step in a slot: packed rows, commands, watermark updates, the time of the round.

    `wakes` is true in the first round of a job that starts with a seed.
    """

    rows: list[PackedRow]
    commands: list[SlotCommand]
    updates: list[WatermarkUpdate]
    at: dt.datetime
    wakes: bool


@dataclass
class OpenSlot:
    """The state of a step in a slot, from `open` to `store`. `name` is that of the slot in the worker's cache.

    `tallies` is what the versions of each model have scored meanwhile, `answers` what groups of models and
    lookups took.
    """

    slot: Slot
    name: Hashable
    entries: Entries
    tables: SlotTables
    answers: SlotAnswers
    was_woken: bool = False
    has_swept: bool = False
    tallies: dict[str, dict[str, VersionTally]] = field(default_factory=dict)
