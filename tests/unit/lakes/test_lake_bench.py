"""The benchmark of tables as sources, at small scale: both readers read all rows."""

from __future__ import annotations

import pytest
from benchmarks.lake_source import measure_lake
from lake_tables import LAKES


@pytest.mark.parametrize("lake", LAKES)
def test_both_readers_read_all_rows(lake: str) -> None:
    """Otherwise `measure_lake` fails."""
    found = measure_lake(lake, 800, 1)
    assert found["rows"] == 800
    assert len(found["rows_per_s"]) == 2
    assert min(found["ratio"].values()) > 0
