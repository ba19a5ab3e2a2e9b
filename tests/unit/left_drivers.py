"""Drivers that a test of managers has left running: they end with it."""

from __future__ import annotations

from pathlib import Path

from penstock.server.runs.processes import BEGUN_FILE, kill_all, started_process

__all__ = ["kill_left_drivers"]


def kill_left_drivers(root: Path) -> None:
    """Kill every driver whose folder of a run is below this one."""
    for path in root.rglob(BEGUN_FILE):
        begun = started_process(path.parent)
        if begun is not None:
            kill_all(begun)
