"""The demo's run with a substitute job: what it starts, shows, counts and finds."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_in_job import StandInThread

from penstock.demo import demo_run as demo
from penstock.demo.view import Snapshot
from penstock.errors import JobFailedError


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[StandInThread]:
    """Use no Spark, a fast pace, and a temporary folder that the test can inspect."""

    class Thread(StandInThread):
        pass

    monkeypatch.setattr(demo, "JobThread", Thread)
    monkeypatch.setattr(demo, "_TICK_S", 0.05)
    monkeypatch.setattr(demo, "_CHANGE_EVERY_S", 0.2)
    monkeypatch.setattr(demo, "_CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Thread


class CtrlC:
    """Watches a run, and presses Ctrl-C once a snapshot while it runs has what is wanted."""

    def __init__(self, is_enough: Callable[[Snapshot], bool]) -> None:
        self._is_enough = is_enough
        self.is_pressed = False

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.phase == "running" and not self.is_pressed and self._is_enough(snapshot):
            self.is_pressed = True
            signal.raise_signal(signal.SIGINT)


def test_a_run_shows_changes_and_has_no_violations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every reading is judged, changes are answered, and no file remains."""
    seen: list[Snapshot] = []
    summary = demo.run_demo(seconds=1.2, sensors=12, watch=seen.append)
    assert summary.violations == 0
    assert 3 <= summary.control_changes <= 6
    assert summary.records_in["settings"] == 12 + summary.control_changes
    assert summary.records_in["readings"] == seen[-1].judged
    assert summary.records_in["readings"] % 12 == 0
    assert summary.first_command_s is not None
    assert 1.2 <= summary.seconds < 2
    phases = list(dict.fromkeys(snapshot.phase for snapshot in seen))
    assert phases == ["starting", "running", "finishing", "done"]
    assert any(s.last_change is not None and s.last_change.answered_s is not None for s in seen)
    assert any(s.judged for s in seen if s.phase == "running"), "checked while it runs"
    assert list(tmp_path.glob("penstock-demo-*")) == []
    out = capsys.readouterr().out
    assert "Violations: 0" in out
    assert f"Control changes: {summary.control_changes}" in out


def test_json_output_leaves_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line itself prints the single JSON object."""
    demo.run_demo(seconds=0.2, sensors=2, json_output=True)
    assert capsys.readouterr().out == ""


def test_a_wrong_job_is_found_and_its_files_are_kept(
    stand_in: type[StandInThread], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A job that loses commands has violations, in the view and in the summary."""
    stand_in.fault = lambda self, batch, commands: commands[1:]  # type: ignore[assignment, misc]
    watch = CtrlC(lambda now: now.violations > 0)
    summary = demo.run_demo(seconds=60, sensors=12, watch=watch)
    assert summary.violations > 0
    assert watch.is_pressed, "there are violations while it runs"
    (kept,) = tmp_path.glob("penstock-demo-*")
    assert str(kept) in capsys.readouterr().out


def test_a_job_that_ignores_the_cut_is_found(stand_in: type[StandInThread]) -> None:
    """Settings that take effect a micro-batch too late change commands."""
    stand_in.late = True
    assert demo.run_demo(seconds=0.8, sensors=12, json_output=True).violations > 0


def test_ctrl_c_ends_the_demo_with_a_summary() -> None:
    """The rooms stop, the job processes the remaining input, and everything is checked."""
    before = signal.getsignal(signal.SIGINT)
    watch = CtrlC(lambda now: now.readings > 0)
    summary = demo.run_demo(seconds=60, sensors=12, json_output=True, watch=watch)
    assert summary.seconds < 5
    assert summary.violations == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failing_job_ends_the_demo_with_its_error(stand_in: type[StandInThread]) -> None:
    """The job's error is raised unchanged."""
    stand_in.error = JobFailedError("the disk is full")
    with pytest.raises(JobFailedError, match="the disk is full"):
        demo.run_demo(seconds=5, sensors=2, json_output=True)


def test_the_summary_ends_with_the_violations() -> None:
    """The order is documented."""
    assert list(demo.DemoSummary.__dataclass_fields__)[-1] == "violations"
