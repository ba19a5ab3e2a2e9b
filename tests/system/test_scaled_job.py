"""Autoscaling of a real job under `penstock serve`, by the public benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import autoscaling


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_load_that_rises_fourfold_and_falls_again(tmp_path: Path) -> None:
    """Lag returns to its level in at most four rescales; each order is priced once, or `measure` raises."""
    sizes = autoscaling.Sizes(picture=str(tmp_path / "chart.svg"))
    result = json.loads(json.dumps(autoscaling.measure(sizes, tmp_path)))
    autoscaling.show(result)
    assert autoscaling.complaint(result) == ""
    assert {one["by"] for one in result["rescales"]} == {"autoscaler"}
    assert all(0 < one["downtime_s"] < 60 for one in result["rescales"])
    assert max(one["after"] for one in result["rescales"]) >= 2
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
