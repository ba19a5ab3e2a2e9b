"""The video-quality job finds the playbacks that its feed has broken, from any starting state."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.batch_runner import BatchRunner

EXAMPLE = Path(__file__).parents[3] / "examples" / "video_quality"


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module("quality_job")


@pytest.mark.parametrize("batches", [1, 7])
def test_broken_playbacks_are_found_and_no_others(quality: Any, batches: int) -> None:
    """Any division of the records works; anomalies are not learned, so they stay anomalies."""
    feed = importlib.import_module("video_quality.feed")
    runner = BatchRunner(quality.job, parallelism=2)
    for day in (1, 2, 3):
        playbacks = feed.playbacks_of(day)
        size = -(-len(playbacks) // batches)
        found: set[str] = set()
        for start in range(0, len(playbacks), size):
            records = [quality.Playback(**one) for one in playbacks[start : start + size]]
            result = runner.run({"playbacks": [("0", records)]})
            found |= {one.session for one in result.output("unusual")}
        assert found == {one["session"] for one in playbacks if feed.is_amiss(one)}
        assert bool(found) == (day > 1)
