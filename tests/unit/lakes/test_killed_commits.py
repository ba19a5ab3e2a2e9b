"""Drivers that are killed within a commit: the next one repeats the micro-batch, and each record is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

PROGRAM = Path(__file__).with_name("killed_commit.py")
POINTS = ("created", "writing", "staged", "added", "committed")


def test_a_driver_that_is_killed_at_any_point_of_a_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    table = tmp_path / "t"
    subprocess.run([sys.executable, PROGRAM, str(table), *POINTS], check=True)
    found = DeltaTable(table)
    assert sorted(found.to_pyarrow_table().column("number").to_pylist()) == list(range(2 * len(POINTS)))
    # What was staged in vain is removed as the page on the connector says.
    removed = found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(removed) == 2
    assert DeltaTable(table).to_pyarrow_table().num_rows == 2 * len(POINTS)
