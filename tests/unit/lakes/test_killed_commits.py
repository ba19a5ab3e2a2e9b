"""Drivers that are killed within a commit: the next one repeats the micro-batch, and each record is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from lake_drivers import RECORDS, TASKS
from reliability import noting

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


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_drivers_that_are_killed_or_stand_still_while_they_commit(tmp_path: Path, seed: int) -> None:
    """Each number up to the newest micro-batch is there once, whatever the drivers were doing."""
    program = Path(__file__).with_name("lake_drivers.py")
    arguments = "-k killed_or_stand_still_while_they_commit"
    with noting("lake sinks", arguments, str(seed)) as injected:
        injected.add("driver killed at any instruction of its commits to Delta Lake, without Spark", 40)
        injected.add("driver that stands still while another commits to Delta Lake, without Spark", 10)
        subprocess.run([sys.executable, program, str(tmp_path), str(seed), "40", "10"], check=True)
        found = sorted(DeltaTable(tmp_path / "table").to_pyarrow_table().column("number").to_pylist())
        noted = int((tmp_path / "committed").read_text()) + 1
        # The last driver may have died between its commit and its note.
        assert len(found) // (TASKS * RECORDS) in (noted, noted + 1)
        assert found == list(range(len(found)))
