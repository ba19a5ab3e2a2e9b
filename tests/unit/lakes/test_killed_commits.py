"""Drivers killed during a commit: the next one repeats the micro-batch, and each record is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from lake_drivers import RECORDS, TASKS
from lake_tables import LAKES, records_of
from reliability import noting

PROGRAM = Path(__file__).with_name("killed_commit.py")
POINTS = {
    "delta": ("created", "writing", "staged", "added", "committed"),
    "iceberg": ("created", "writing", "staged", "uncommitted", "committed"),
}
NAMES = {"delta": "Delta Lake", "iceberg": "Iceberg"}


def run(program: Path, *arguments: str) -> None:
    """Run a program that imports modules beside the tests."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, program, *arguments], env=environment, check=True)


@pytest.mark.parametrize("lake", LAKES)
def test_a_driver_that_is_killed_at_any_point_of_a_commit_loses_and_doubles_nothing(
    tmp_path: Path, lake: str
) -> None:
    run(PROGRAM, lake, str(tmp_path), *POINTS[lake])
    expected = list(range(2 * len(POINTS[lake])))
    assert sorted(records_of(lake, tmp_path).column("number").to_pylist()) == expected
    if lake == "delta":
        # Files staged in vain are removed as the connector's page describes.
        found = DeltaTable(tmp_path / "table")
        removed = found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert len(removed) == 2
        assert records_of(lake, tmp_path).num_rows == len(expected)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lake", LAKES)
def test_drivers_that_are_killed_or_stand_still_while_they_commit(
    tmp_path: Path, lake: str, seed: int
) -> None:
    """Each number up to the newest micro-batch is there once."""
    program = Path(__file__).with_name("lake_drivers.py")
    arguments = "-k killed_or_stand_still_while_they_commit"
    with noting("lake sinks", arguments, str(seed)) as injected:
        name = NAMES[lake]
        injected.add(f"driver killed at any instruction of its commits to {name}, without Spark", 40)
        injected.add(f"driver that stands still while another commits to {name}, without Spark", 10)
        run(program, lake, str(tmp_path), str(seed), "40", "10")
        found = sorted(records_of(lake, tmp_path).column("number").to_pylist())
        noted = int((tmp_path / "committed").read_text()) + 1
        # The last driver may have died between its commit and its note.
        assert len(found) // (TASKS * RECORDS) in (noted, noted + 1)
        assert found == list(range(len(found)))
