"""Mounted state: the settings with which Spark reaches the state of a checkpoint on an object store."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoints.state_files import state_target
from penstock.objects.object_stores import Place
from penstock.spark.state_mount import StateMount

__all__ = ["find_mounted_state", "mount_of"]


def find_mounted_state(folder: Path) -> StateMount | None:
    """Return where the state of a checkpoint is for Spark, None if it is in the folder. Raises CheckpointError."""
    target = state_target(folder)
    return None if target is None else mount_of(target, folder)


def mount_of(target: Place, folder: Path) -> StateMount:
    """Return the mounts for state below a prefix, whose last part is unique, and a checkpoint in a folder."""
    return StateMount(f"penstock-{target.name.rpartition('/')[2]}", target, folder)
