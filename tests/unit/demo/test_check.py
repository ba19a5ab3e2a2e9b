"""The independent check: no violation for a correct job, and every injected fault is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in_job import Fault, StandInJob

from penstock.demo.check import Checker, differences
from penstock.demo.example import load_fold
from penstock.demo.feeds import READINGS, SETTINGS, Batch
from penstock.demo.folders import FolderEvidence, Folders

Record = dict[str, Any]


def setting(desired: float, sensor: int = 1) -> Record:
    return {"sensor_id": sensor, "desired": desired, "up_delta": 1.0, "down_delta": 1.0}


def readings(*temperatures: float, sensor: int = 1) -> list[Record]:
    return [{"sensor_id": sensor, "temperature": temperature} for temperature in temperatures]


# Batches with alternating commands, and with a setting that decides about a reading of the same batch.
RUN: list[tuple[list[Record], list[Record]]] = [
    ([setting(20.0), setting(20.0, 2)], [*readings(18.0, 22.0), *readings(18.0, sensor=2)]),
    ([], [*readings(18.0), *readings(20.0, sensor=2)]),
    ([setting(15.0)], readings(18.0)),
    ([], readings(15.0)),
    ([setting(20.0)], [*readings(18.0), *readings(25.0, sensor=2)]),
]
COMMANDS = 7


def violations(tmp_path: Path, fault: Fault | None = None, *, late: bool = False) -> int:
    """Run the substitute job over RUN; return the violations."""
    feed = Folders(tmp_path / "streams")
    job = StandInJob(feed, str(tmp_path / "checkpoint"), fault, late=late)
    for settings, found in RUN:
        feed.send(SETTINGS, settings)
        feed.send(READINGS, found)
        assert job.step()
    checker = Checker(load_fold(), feed.evidence(str(tmp_path / "checkpoint")))
    checker.follow(job.batch)
    assert (checker.settings, checker.readings) == (4, 9)
    return checker.violations()


def test_a_right_run_has_no_violations(tmp_path: Path) -> None:
    """Every command is where the fold expects it."""
    written: list[Record] = []

    def look(batch: int, commands: list[Record]) -> list[Record]:
        written.extend(commands)
        return commands

    assert violations(tmp_path, look) == 0
    assert len(written) == COMMANDS


@pytest.mark.parametrize("place", range(COMMANDS))
def test_each_missing_command_is_found(tmp_path: Path, place: int) -> None:
    """One dropped command is one violation, wherever it was."""
    seen = iter(range(COMMANDS))
    assert violations(tmp_path, lambda _, commands: [c for c in commands if next(seen) != place]) == 1


@pytest.mark.parametrize("batch", range(len(RUN)))
def test_a_command_too_many_is_found(tmp_path: Path, batch: int) -> None:
    """One extra command is one violation; so is a command written twice."""
    extra = {"sensor_id": 1, "command": "ON"}
    assert violations(tmp_path, lambda now, found: [*found, extra] if now == batch else found) == 1


def test_a_duplicate_is_found(tmp_path: Path) -> None:
    """A batch that was written twice after a crash would show."""
    assert violations(tmp_path, lambda batch, found: found * 2 if batch == 2 else found) == 1


@pytest.mark.parametrize("place", range(COMMANDS))
def test_a_wrong_command_is_found(tmp_path: Path, place: int) -> None:
    """ON instead of OFF is one violation."""
    seen = iter(range(COMMANDS))
    other = {"ON": "OFF", "OFF": "ON"}

    def fault(batch: int, commands: list[Record]) -> list[Record]:
        return [c | {"command": other[c["command"]]} if next(seen) == place else c for c in commands]

    assert violations(tmp_path, fault) == 1


def test_a_command_for_another_room_is_found(tmp_path: Path) -> None:
    """It is missing in one room and surplus in the other."""
    assert (
        violations(tmp_path, lambda b, found: [c | {"sensor_id": 9} for c in found] if b == 1 else found) == 2
    )


def test_a_command_that_came_a_batch_late_is_found(tmp_path: Path) -> None:
    """Each room's sequence is right, but the micro-batch is wrong."""
    kept: list[Record] = []

    def fault(batch: int, commands: list[Record]) -> list[Record]:
        if batch == 1:
            kept.extend(commands)
            return []
        return [*kept, *commands] if batch == 2 else commands

    assert violations(tmp_path, fault) > 0


def test_settings_that_take_effect_behind_the_cut_are_found(tmp_path: Path) -> None:
    """This detects a job that applies control after its batch's data."""
    assert violations(tmp_path, late=True) > 0


def test_a_wrong_cut_is_found(tmp_path: Path) -> None:
    """If the checkpoint's cut is not the job's real one, the model disagrees."""
    assert violations(tmp_path) == 0
    offsets = tmp_path / "checkpoint" / "offsets"
    lines = (offsets / "2").read_text().splitlines()
    lines[2] = (offsets / "1").read_text().splitlines()[2]
    (offsets / "2").write_text("\n".join(lines))
    evidence = FolderEvidence(tmp_path / "checkpoint", tmp_path / "streams" / "heaters")
    checker = Checker(load_fold(), evidence)
    checker.follow(len(RUN) - 1)
    assert checker.violations() > 0


class Topic:
    """Evidence without the micro-batch of a command, as from a topic."""

    tells_batch = False

    def __init__(self, run: list[tuple[list[Record], list[Record]]], commands: list[list[Record]]) -> None:
        self.run = run
        self.written = commands

    def batch(self, batch_id: int) -> Batch:
        return Batch(batch_id, *self.run[batch_id])

    def commands(self, batch_id: int) -> list[Record]:
        return self.written[batch_id]

    def close(self) -> None:
        pass


def test_commands_ahead_of_the_check_count_only_at_the_end() -> None:
    """During the run a topic may have commands of batches not yet checked; at the end it may not."""
    on, off = {"sensor_id": 1, "command": "ON"}, {"sensor_id": 1, "command": "OFF"}
    run = [([setting(20.0)], readings(18.0)), ([], readings(25.0))]
    checker = Checker(load_fold(), Topic(run, [[on, off], []]))
    checker.follow(0)
    assert checker.violations(running=True) == 0
    assert checker.violations() == 1
    checker.follow(1)
    assert checker.violations(running=True) == 0
    assert checker.violations() == 0


commands = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ON", "OFF"])), max_size=8)


@given(commands, commands, commands)
def test_differences_is_a_distance(one: list[Any], two: list[Any], three: list[Any]) -> None:
    """It is a metric: zero only for equals, symmetric, with the triangle inequality, and at most one per
    command.
    """
    assert (differences(one, two) == 0) == (one == two)
    assert differences(one, two) == differences(two, one)
    assert differences(one, three) <= differences(one, two) + differences(two, three)
    assert abs(len(one) - len(two)) <= differences(one, two) <= max(len(one), len(two))
