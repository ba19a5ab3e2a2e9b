"""Crashes, restarts, other numbers of tasks, and savepoints of a job in process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from warm_rooms_job import NOON, Alarm, Limit, Reading, Watch, described, reading

import penstock as ps
from penstock.errors import AlreadyThereError, StateMismatchError
from penstock.testing import JobHarness, ReplayMismatchError


class Plain(ps.ConnectedProcessFunction):
    """Ignores control records."""

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        pass


class KeepsItself(ps.ConnectedProcessFunction):
    """Keeps limits in an attribute, which a crash loses."""

    def __init__(self) -> None:
        self.limits: dict[str, float] = {}

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        self.limits[limit.room] = limit.highest

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        yield Alarm(reading.room, str(self.limits.get(reading.room)))


class Draws(Plain):
    """Emits random numbers."""

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        yield Alarm(reading.room, str(random.random()))


class DrawsIntoState(Plain):
    """Stores random numbers, and emits nothing."""

    drawn = ps.ValueState(float)

    def process_record(self, reading: Reading, ctx: ps.Context) -> None:
        self.drawn.set(random.random())


class TellsSometimes(Plain):
    """Emits on every other call in the process."""

    calls = itertools.count()

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        if not next(TellsSometimes.calls) % 2:
            yield Alarm(reading.room, "now")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (KeepsItself(), "the sink 'alarms' got Alarm(room='hall', text='None') as number 1, and "),
        (Draws(), "the sink 'alarms' got Alarm"),
        (DrawsIntoState(), "the state of the step 'watch' differs, though nothing that left the job does."),
        (
            TellsSometimes(),
            "the sink 'alarms' got nothing as number 1, and Alarm(room='hall', text='now') before.",
        ),
    ],
)
def test_a_job_that_would_not_survive_a_crash_is_found(function: Any, message: str) -> None:
    """The error has the first difference, and says what a function may depend on."""
    run = JobHarness(described(function))
    run.send("limits", Limit("hall", 25.0))
    run.run_batch()
    run.send("readings", reading("hall", 26.0))
    run.run_batch()
    with pytest.raises(ReplayMismatchError) as raised:
        run.crash()
    assert message in str(raised.value)
    assert "Micro-batch 1 had a different result" in str(raised.value)
    assert "its states, its records and ctx: attributes are lost in a crash" in str(raised.value)


def test_a_crash_shows_in_nothing() -> None:
    """Outputs, receipts and timers occur once; input pending for the next micro-batch stays pending."""
    run = JobHarness(described(), parallelism=2, now=NOON)
    assert run.crash() is None
    run.send("limits", Limit("hall", 25.0))
    run.send("readings", reading("hall", 26.0))
    command = run.send_command("set", "watch", {"patience": 5})
    run.run_batch()
    run.send("readings", reading("hall", 20.0, second=1))
    run.crash()
    run.crash()
    assert len(run.output("heard")) == 1
    assert [receipt.status for receipt in run.receipts(command)] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    run.advance_clock("5s")
    run.crash()
    run.run_batch()
    run.crash()
    assert run.output("alarms") == [Alarm("hall", "warm")]
    assert run.state("watch", key="hall") == {"limit": 25.0, "readings": 2}


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_the_state_goes_along_to_other_numbers_of_tasks(tasks: int) -> None:
    """Timers, open windows and settings are included."""
    run = JobHarness(described(), parallelism=2, now=NOON)
    run.send("limits", [Limit(f"room {number}", 25.0) for number in range(20)])
    run.send("readings", [reading(f"room {number}", 26.0) for number in range(20)])
    run.send_command("set", "watch", {"patience": 5})
    run.run_batch()
    before = run.state("watch")
    run.rescale(tasks)
    assert (run.state("watch"), run.settings("watch")) == (before, {"patience": 5})
    assert run.crash() is None, "there is nothing to repeat between two micro-batches"
    run.advance_clock("10s")
    run.finish()
    run.crash()
    assert len(run.output("alarms")) == len(run.output("means")) == 20


def test_a_restart_loses_nothing() -> None:
    """Timers that became due meanwhile fire in the first micro-batch."""
    run = JobHarness(described(), now=NOON)
    run.send("limits", Limit("hall", 25.0))
    run.send("readings", reading("hall", 26.0))
    run.run_batch()
    run.restart()
    run.advance_clock("1h")
    run.run_batch()
    assert run.output("alarms") == [Alarm("hall", "warm")]


class Renamed(Watch):
    """The step with a state renamed, one added, and one removed."""

    limit = ps.ValueState(float, renamed_from="limit")
    readings = ps.ValueState(float)
    times = ps.ValueState(int)


def test_a_savepoint_becomes_the_state_of_a_changed_job(tmp_path: Path) -> None:
    """The rules are those of real savepoints; streams and ids of commands continue."""
    run = JobHarness(described(), parallelism=2, now=NOON)
    run.send("limits", Limit("hall", 25.0))
    run.send("readings", reading("hall", 26.0))
    run.send_command("set", "watch", {"patience": 5})
    run.run_batch()
    saved = run.savepoint()
    changed = JobHarness(described(), parallelism=3, now=NOON, from_savepoint=saved)
    command = changed.send_command("set", "watch", {"patience": 7})
    changed.advance_clock("10s")
    changed.run_batch()
    assert command == "command-2"
    assert changed.receipts(command)[-1].status == "APPLIED"
    assert changed.output("alarms") == [Alarm("hall", "warm")]
    with pytest.raises(StateMismatchError, match="watch"):
        JobHarness(described(Watch(), name="another"), from_savepoint=saved)
    fresh = JobHarness(
        described(Watch(), name="another"), from_savepoint=saved, allow_non_restored_state=True
    )
    assert fresh.state("another") == {}


def test_a_savepoint_has_a_place_of_its_own(tmp_path: Path) -> None:
    """It stays there, and is never overwritten."""
    run = JobHarness(described(), now=NOON)
    run.send("limits", Limit("hall", 25.0))
    run.run_batch()
    saved = run.savepoint(tmp_path / "saved")
    assert saved.manifest.kind == "savepoint"
    assert JobHarness(described(), from_savepoint=tmp_path / "saved").state("watch") == run.state("watch")
    with pytest.raises(AlreadyThereError):
        run.savepoint(tmp_path / "saved")


class AnyOrder(RuleBasedStateMachine):
    """A job under random operations, compared with a dictionary: the guide to testing has a similar one."""

    def __init__(self) -> None:
        super().__init__()
        self.run = JobHarness(described(), parallelism=2, now=NOON)
        self.readings: dict[str, int] = {}
        self.limits: dict[str, float] = {}

    @rule(room=st.sampled_from("abc"), highest=st.floats(0, 50))
    def limit(self, room: str, highest: float) -> None:
        self.run.send("limits", Limit(room, highest))
        self.run.run_batch()
        self.limits[room] = highest

    @rule(rooms=st.lists(st.sampled_from("abc"), max_size=4))
    def read(self, rooms: list[str]) -> None:
        self.run.send("readings", [reading(room, 60.0) for room in rooms])
        self.run.run_batch()
        for room in rooms:
            self.readings[room] = self.readings.get(room, 0) + 1

    @rule()
    def crash(self) -> None:
        self.run.crash()

    @rule(tasks=st.integers(1, 4))
    def rescale(self, tasks: int) -> None:
        self.run.rescale(tasks)

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        expected = {
            room: {"limit": self.limits.get(room), "readings": self.readings.get(room)}
            for room in self.limits.keys() | self.readings.keys()
        }
        assert self.run.state("watch") == expected


AnyOrder.TestCase.settings = settings(max_examples=12, stateful_step_count=15)
test_a_job_can_be_a_rule_based_state_machine = AnyOrder.TestCase
