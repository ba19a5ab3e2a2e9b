"""Settings in force: the values of the settings of the steps of a job, from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.commands.command_catalog import read_command_catalog

__all__ = ["settings_in_force"]


class _Counts(msgspec.Struct, frozen=True):
    """Settings, as the newest micro-batches reported them."""

    settings: dict[str, dict[str, Any]] = {}


def settings_in_force(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each step that has any, by name: as set by a command, else the default.

    Values that apply from an event time on are listed under separate names. Raises CheckpointError.
    """
    entry = read_command_catalog(checkpoint)
    reported = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    # A setting that is new in the code has no earlier value, and a removed one is not shown.
    return {
        name: {
            **step.defaults,
            **{
                setting: value
                for setting, value in reported.settings.get(name, {}).items()
                if setting.removesuffix(" from event time") in step.settings
            },
        }
        for name, step in entry.steps.items()
        if step.settings
    }
