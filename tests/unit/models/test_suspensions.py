"""Suspended versions: a call that hangs or fills memory ends its worker, and the previous version takes over."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from model_parts import CARDS, Linear, ScoreBatches, bring_in, last, order, pay, scoring_job, weights

import penstock as ps
from penstock.base.instants import milliseconds_of
from penstock.models.call_watch import CallLimits, CallWatch
from penstock.models.library_places import FolderPlace, LibraryPlace
from penstock.models.suspensions import SlotSuspensions, Suspension, find_suspensions, suspend
from penstock.testing import JobHarness

HUNG = Suspension("score", "fraud", "2", "p2", "", 7, 0)


class Ended(CallWatch):
    """Records that it would have ended the process."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        super().__init__(self.ended.set)


def library(run: JobHarness) -> LibraryPlace:
    found = run.runner.plan.library
    assert found is not None
    return found


def test_a_call_that_takes_too_long_is_suspended(tmp_path: Path) -> None:
    """The note has the reason; calls that finish in time are not suspended."""
    watch = Ended()
    for _ in range(3):
        watch.begin(FolderPlace(str(tmp_path)), HUNG, CallLimits(0.3, 1 << 30))
        time.sleep(0.01)
        watch.done()
    assert not watch.ended.wait(0.5)
    watch.begin(FolderPlace(str(tmp_path)), HUNG, CallLimits(0.3, 1 << 30))
    assert watch.ended.wait(10)
    (found,) = find_suspensions(FolderPlace(str(tmp_path)))
    assert found.reason == "a call of it has not answered within 0.3 s"
    watch.done()


def test_a_call_that_fills_the_memory_is_suspended(tmp_path: Path) -> None:
    """Memory used before does not count."""
    watch = Ended()
    watch.begin(FolderPlace(str(tmp_path)), HUNG, CallLimits(600.0, 100 << 20))
    taken = []
    while not watch.ended.wait(0.05) and len(taken) < 100:
        taken.append(np.ones(1 << 20))
    watch.done()
    (found,) = find_suspensions(FolderPlace(str(tmp_path)))
    assert found.reason == "a call of it took more than 100 MiB of memory"


def test_the_process_ends_with_the_file_on_disk(tmp_path: Path) -> None:
    """This holds even while Python code never releases the GIL."""
    code = f"""
    from penstock.models.call_watch import CallLimits, call_watch
    from penstock.models.library_places import FolderPlace
    from penstock.models.suspensions import Suspension
    call_watch.begin(FolderPlace({str(tmp_path)!r}), Suspension("s", "m", "1", "c", "", 0, 0), CallLimits(0.2, 1 << 30))
    while True:
        pass
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60)
    assert done.returncode == 71
    assert b"a model hangs" in done.stderr
    assert [found.version for found in find_suspensions(FolderPlace(str(tmp_path)))] == ["1"]


def test_a_suspension_counts_in_its_slot_from_its_time_on(tmp_path: Path) -> None:
    """So earlier commits replay unchanged."""
    place = FolderPlace(str(tmp_path))
    suspend(place, HUNG)
    suspend(place, HUNG)

    def versions(now_ms: int, *key_groups: int) -> list[str]:
        found = SlotSuspensions(place, "score", key_groups).at(now_ms, "fraud")
        return [one.version for one in found]

    assert (versions(7, 0, 1), versions(6, 0, 1), versions(7, 2, 3)) == (["2"], [], [])
    assert SlotSuspensions(place, "score", (0,)).at(7, "other") == []


@pytest.mark.parametrize("status", ["promote", "canary", "shadow"])
def test_the_version_before_scores_where_one_is_suspended(status: str) -> None:
    """It does so in the affected slot, until a command changes the version's status."""
    run = JobHarness(scoring_job(), parallelism=2)
    bring_in(run, "1", weights(2.0))
    order(run, "promote", "1")
    bring_in(run, "2", weights(3.0))
    command = order(run, status, "2", **({"share": 1.0} if status == "canary" else {}))
    expected = {"1"} if status == "shadow" else {"2"}
    assert set(pay(run).values()) == expected
    now_ms = milliseconds_of(run.runner.now)
    suspend(library(run), Suspension("score", "fraud", "2", command, "it hung", now_ms + 1, 0))
    run.crash()
    assert {record.version for record in run.outcomes[-1].output("scores")} == expected
    run.advance_clock("1s")
    versions = pay(run)
    assert set(versions.values()) == expected | {"1"}
    assert run.outcomes[-1].dead_letters == []
    run.crash()
    back = order(run, "roll-back", "2", reason="it hung")
    assert set(pay(run).values()) == {"1"}
    assert (last(run, back).status, last(run, command).status) == ("APPLIED", "DEGRADED")
    order(run, "promote", "2")
    assert set(pay(run).values()) == {"2"}, "somebody wants to try it again"


def test_without_a_version_before_the_records_are_dead_letters() -> None:
    """They have the reason; the job continues."""
    run = JobHarness(scoring_job())
    bring_in(run, "1", weights(2.0))
    command = order(run, "promote", "1")
    pay(run)
    suspend(library(run), Suspension("score", "fraud", "1", command, "it hung", 0, 0))
    assert pay(run) == {}
    letters = run.outcomes[-1].dead_letters
    assert len(letters) == len(CARDS)
    assert all("no usable score for this record (it hung)" in letter.reason for letter in letters)


def test_a_slow_version_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens once half of its scores take over ten times its budget; its scores count."""

    class ScoreInTime(ScoreBatches):
        model = ps.Model(
            "fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear, default=-1.0, budget="50ms",
            policy=ps.ModelPolicy(roll_back_records=20),
        )  # fmt: skip

    run = JobHarness(scoring_job(ScoreInTime()))
    bring_in(run, "1", weights(2.0))
    order(run, "promote", "1")
    bring_in(run, "2", weights(3.0))
    promotion = order(run, "promote", "2")
    pay(run)
    clock = iter(range(10_000))
    with monkeypatch.context() as patch:
        # Each call takes a second.
        patch.setattr("penstock.models.bound_model.time.perf_counter", lambda: float(next(clock)))
        assert set(pay(run).values()) == {"2"}
    assert set(pay(run).values()) == {"1"}
    assert last(run, promotion).reason == "the share of slow scores is 1, above 0.5, over 24 records"
