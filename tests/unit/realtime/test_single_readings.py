"""The benchmark of single readings at small scale: its commands are those that the model expects."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.single_readings import Sizes, measure


@pytest.mark.parametrize("at_once", [1, 20])
def test_each_reading_has_its_command(at_once: int, tmp_path: Path) -> None:
    found = measure(Sizes(readings=100, at_once=at_once), tmp_path)
    assert found["readings"] >= 100
    assert found["us"]["all"] > found["us"]["reading"] > 0
