"""State listing: list the states of a job, with the number of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.checkpoints.described_state import JobState
from penstock.state.group_table import KEY_COLUMN

__all__ = ["list_steps"]


class _Counts(msgspec.Struct):
    """The part of the counts that is shown: keys by step and slot."""

    keys: dict[str, dict[str, int]] = {}


def list_steps(checkpoint: Path, state: JobState) -> list[dict[str, Any]]:
    """List the steps of a job with their numbers of keys and their states. Needs no Spark."""
    counts = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    return [
        {
            "step": name,
            "keys": sum(counts.keys.get(name, {}).values()),
            "key": str(step.schema.field(KEY_COLUMN).type),
            "states": [
                {"name": state_name, "kind": found.kind, "type": str(found.schema.field("value").type)}
                for state_name, found in {**step.states, **step.shared}.items()
                if not state_name.startswith("__")
            ],
        }
        for name, step in state.steps.items()
    ]
