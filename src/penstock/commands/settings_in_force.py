"""Settings in force: the values with which the steps of a job work, as its checkpoint tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.commands.command_catalog import read_command_catalog

__all__ = ["settings_in_force"]


class _Counts(msgspec.Struct, frozen=True):
    """What the newest micro-batches have told of settings."""

    settings: dict[str, dict[str, Any]] = {}


def settings_in_force(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """The settings of each step that has any, by names: as somebody has set them, else their defaults.

    What holds from an event time on is told by itself. Raises CheckpointError.
    """
    entry = read_command_catalog(checkpoint)
    told = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    # A setting that is new in the code, or is gone, has no value of before.
    return {
        name: {
            **step.defaults,
            **{
                setting: value
                for setting, value in told.settings.get(name, {}).items()
                if setting.removesuffix(" from event time") in step.settings
            },
        }
        for name, step in entry.steps.items()
        if step.settings
    }
