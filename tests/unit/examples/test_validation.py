"""The notebook of the video-quality example accepts the job's learned state, and no other dump."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError

import penstock as ps
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import take_dump

EXAMPLE = Path(__file__).parents[3] / "examples" / "video_quality"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the example."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module


@pytest.fixture
def dumps(tmp_path: Path, beside: Any) -> tuple[str, str]:
    """Return dumps of the learned state after one day, and after two."""
    quality, feed = beside("quality_job"), beside("video_quality.feed")
    runner = BatchRunner(quality.job)
    for day in (1, 2):
        runner.run({"playbacks": [("0", [quality.Playback(**one) for one in feed.playbacks_of(day)])]})
        take_dump(runner, str(tmp_path / f"day-{day}"), "parquet")
    return str(tmp_path / "day-1"), str(tmp_path / "day-2")


def test_a_dump_is_validated_in_the_notebook(dumps: tuple[str, str], beside: Any, tmp_path: Path) -> None:
    """run.py does the same; the saved notebook has its output, with a picture."""
    assert beside("video_quality.validation").validate(*dumps, tmp_path / "results") == 6
    kept = json.loads((tmp_path / "results" / "validate.ipynb").read_text())
    shown = [output for cell in kept["cells"] for output in cell.get("outputs", ())]
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    assert "mean_bitrate" in (tmp_path / "results" / "moved.svg").read_text()


@pytest.mark.chaos
def test_a_dump_of_a_broken_transcoder_is_not_good(
    dumps: tuple[str, str], beside: Any, tmp_path: Path
) -> None:
    """The failed check says why."""
    quality, feed = beside("quality_job"), beside("video_quality.feed")

    class Gullible(quality.Watch):  # type: ignore[misc]  # a class found at run time
        """Learns everything, including anomalies."""

        def process_record(self, record: Any, ctx: Any) -> Any:
            self.usual.learn(record, scored=False)
            return ()

    job = ps.Job("video-quality", key_groups=16)
    playbacks = job.data_stream("playbacks", schema=quality.Playback)
    playbacks.key_by("title").process("watch", Gullible(), output=quality.Unusual).sink_to("unusual")
    runner = BatchRunner(job)
    stuck = [quality.Playback(title, str(n), 9.0 + n % 2, 0.2) for title in feed.TITLES for n in range(1000)]
    runner.run({"playbacks": [("0", stuck)]})
    take_dump(runner, str(tmp_path / "broken"), "parquet")
    with pytest.raises(CellExecutionError, match="the bitrate moved"):
        beside("video_quality.validation").validate(dumps[0], str(tmp_path / "broken"), tmp_path / "results")


def test_the_notebook_has_no_output() -> None:
    """The committed notebook is clean."""
    notebook = json.loads((EXAMPLE / "validate.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) == 6
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
