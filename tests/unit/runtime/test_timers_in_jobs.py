"""Timers in whole jobs over micro-batches, against plain Python, with the test's own clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

import penstock as ps
from penstock.testing.batch_runner import NOW, BatchRunner

SECOND = dt.timedelta(seconds=1)


@dataclass
class Ask:
    """What to do with a timer, some seconds after the start."""

    key: str
    act: str
    seconds: int = 0
    name: str = ""


@dataclass
class Told:
    key: str
    text: str


class Asking(ps.ConnectedProcessFunction):
    side_outputs: ClassVar = {"fired": Told}
    count = ps.ValueState(int)

    @ps.on_command("wake")
    def wake(self, seconds: int, ctx: ps.CommandContext) -> None:
        ctx.timers.register(NOW + seconds * SECOND, "command")

    def process_control(self, record: Ask, ctx: ps.Context) -> Iterator[Told]:
        return self.process_record(record, ctx)

    def process_record(self, record: Ask, ctx: ps.Context) -> Iterator[Told]:
        at = NOW + record.seconds * SECOND
        if record.act.startswith("register"):
            ctx.timers.register(at, record.name)
        elif record.act.startswith("delete"):
            ctx.timers.delete(at, record.name)
        if record.act.endswith("!"):
            raise ValueError("no")
        yield Told(record.key, record.act)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Told]:
        self.count.set((self.count.get() or 0) + 1)
        seconds = (timer.at - NOW) // SECOND
        ctx.side_output("fired", Told(ctx.key, "aside"))
        if timer.name == "again":
            ctx.timers.register(timer.at + 3 * SECOND, "again" if seconds < 40 else "last")
        if timer.name == "bad":
            raise ValueError("bad")
        if timer.name == "others":
            ctx.timers.delete(timer.at + SECOND)
        yield Told(ctx.key, f"{seconds} {timer.name} {self.count.get()}")


def job_of(function: Any = None, *, partitions: int = 2, key_groups: int = 4) -> BatchRunner:
    job = ps.Job("j", key_groups=key_groups)
    data = job.data_stream("asks", schema=Ask).key_by("key")
    controls = job.control_stream("controls", schema=Ask).key_by("key")
    found = data.connect(controls).process("step", function or Asking())
    found.sink_to("told")
    found.side_output("fired").sink_to("fired")
    return BatchRunner(job, parallelism=partitions)


class Model:
    """The timers and counts of each key."""

    def __init__(self) -> None:
        self.timers: set[tuple[int, str, str]] = set()
        self.counts: dict[str, int] = {}

    def fire(self, now: int) -> Iterator[Told]:
        for timer in sorted(timer for timer in self.timers if timer[0] <= now):
            if timer not in self.timers:
                continue
            self.timers.remove(timer)
            seconds, name, key = timer
            if name == "bad":
                continue
            self.counts[key] = self.counts.get(key, 0) + 1
            if name == "again":
                self.timers.add((seconds + 3, "again" if seconds < 40 else "last", key))
            if name == "others":
                self.timers.discard((seconds + 1, "", key))
            yield Told(key, f"{seconds} {name} {self.counts[key]}")

    def ask(self, ask: Ask) -> Iterator[Told]:
        if ask.act.endswith("!"):
            return
        timer = ask.seconds, ask.name, ask.key
        if ask.act == "register":
            self.timers.add(timer)
        elif ask.act == "delete":
            self.timers.discard(timer)
        yield Told(ask.key, ask.act)


ASKS = st.builds(
    Ask,
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.sampled_from(["register", "register", "register", "delete", "register!", "delete!", "look"]),
    st.integers(0, 30),
    st.sampled_from(["", "again", "bad", "others"]),
)


@examples(20)
@given(
    batches=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 9), st.integers(-40, 40)),
            st.booleans(),
            st.lists(ASKS, max_size=3),
            st.lists(ASKS, max_size=6),
        ),
        max_size=10,
    )
)
def test_every_timer_is_called_once_in_its_order(batches: Any) -> None:
    """It fires in the first micro-batch not before its time, after controls; also after restarts and clock
    jumps.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.state.timeline._FEW", 3)
        job, model = job_of(), Model()
        passed = 0
        for seconds, is_cold, controls, data in [*batches, (500, True, [], []), (60, False, [], [])]:
            passed += seconds
            job.now = NOW + passed * SECOND
            if is_cold:
                job.forget()
            expected = [told for ask in controls for told in model.ask(ask)]
            expected += [*model.fire(passed)]
            expected += [told for ask in data for told in model.ask(ask)]
            inputs = {"controls": [("c", controls)], "asks": [("d", data)]}
            inputs = {name: runs for name, runs in inputs.items() if runs[0][1]}
            told = run_and_replay(job, inputs).output("told")
            for key in "abcde":
                assert [t for t in told if t.key == key] == [t for t in expected if t.key == key]


def test_timers_of_one_key_group_are_called_in_order_whatever_their_keys() -> None:
    """The order is time, then name, then key."""
    job = job_of(partitions=1, key_groups=1)
    job.run(
        {"asks": [("d", [Ask(key, "register", at, name) for at in (2, 1) for name in "yx" for key in "ba"])]}
    )
    job.now += 2 * SECOND
    told = job.run({}).output("told")
    assert [(one.text[:3], one.key) for one in told] == [
        (f"{at} {name}", key) for at in (1, 2) for name in "xy" for key in "ab"
    ]


def test_a_timer_that_raises_is_a_dead_letter_and_not_called_again() -> None:
    """Its state changes are rolled back."""
    job = job_of()
    job.run({"asks": [("d", [Ask("a", "register", 1, "bad"), Ask("a", "register", 2)])]})
    job.now += 5 * SECOND
    result = job.run({})
    (letter,) = result.dead_letters
    assert letter.reason.endswith("ValueError: bad")
    told = {"key": "a", "at": "2026-11-21T00:00:01Z", "name": "bad", "domain": "processing"}
    assert msgspec.json.decode(letter.raw) == told
    assert [one.text for one in result.output("told")] == ["2  1"]
    assert [one.text for one in result.output("fired")] == ["aside"]
    assert not job.run({}).dead_letters


def test_timers_wait_while_the_step_is_paused() -> None:
    """They are held like its data, and come before the data when the step resumes."""
    job = job_of()
    job.run({"asks": [("d", [Ask("a", "register", 1)])]})
    job.run(commands(command_to("step", "pause")))
    job.now += 5 * SECOND
    inputs = {"asks": [("d", [Ask("a", "look")])], "controls": [("c", [Ask("a", "register", 2)])]}
    assert [one.text for one in job.run(inputs).output("told")] == ["register"]
    job.forget()
    assert [one.text for one in job.run(commands(command_to("step", "resume"))).output("told")] == [
        "1  1",
        "2  2",
        "look",
    ]


def test_commands_may_register_timers() -> None:
    """The timers belong to the command's keys."""
    job = job_of()
    job.run(commands(command_to("step", "wake", 3, key="a")))
    job.now += 3 * SECOND
    assert [one.text for one in job.run({}).output("told")] == ["3 command 1"]


def test_a_slot_runs_for_its_timers_alone() -> None:
    """It does not run before the first of them."""
    job = job_of()
    job.run({"asks": [("d", [Ask("a", "register", 5)])]})
    assert [wake for wake in job.wakes.values() if wake] == [(NOW + 5 * SECOND).timestamp() * 1000]
    job.now += 4 * SECOND
    assert not job.run({}).reports
    job.now += SECOND
    assert [one.text for one in job.run({}).output("told")] == ["5  1"]
    assert set(job.wakes.values()) == {None}


@pytest.mark.parametrize(
    ("at", "name", "reason"),
    [
        (NOW.replace(tzinfo=None), "", "ValueError: the time of a timer needs a time zone"),
        (5, "", "TypeError: a timer has a datetime and a name"),
        (NOW, "\ud800", "surrogates not allowed"),
    ],
)
def test_what_is_no_timer_raises_where_it_is_registered(at: Any, name: str, reason: str) -> None:
    """The record that registers it becomes a dead letter."""

    class Bad(Asking):
        def process_record(self, record: Ask, ctx: ps.Context) -> Iterator[Told]:
            ctx.timers.register(at, name)
            yield Told(record.key, "")

    (letter,) = job_of(Bad()).run({"asks": [("d", [Ask("a", "")])]}).dead_letters
    assert reason in letter.reason


def test_without_on_timer_there_are_no_timers() -> None:
    """Registering one raises."""

    class Without(ps.ProcessFunction):
        def process_record(self, record: Ask, ctx: ps.Context) -> Iterator[Told]:
            ctx.timers.register(NOW)
            yield Told(record.key, "")

    job = ps.Job("j")
    job.data_stream("asks", schema=Ask).key_by("key").process("step", Without()).sink_to("told")
    (letter,) = BatchRunner(job).run({"asks": [("d", [Ask("a", "")])]}).dead_letters
    assert "functions that override on_timer" in letter.reason


def test_vectorised_functions_have_timers_from_control_records() -> None:
    """They are called record by record, before the columns."""

    class InBulk(Asking):
        def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
            counts = self.count.columns().values[ctx.key_indices]
            return pa.record_batch({"key": records.column("key"), "text": [str(count) for count in counts]})

    job = job_of(InBulk())
    job.run({"controls": [("c", [Ask("a", "register", 1)])]})
    job.now += SECOND
    assert [one.text for one in job.run({"asks": [("d", [Ask("a", "")])]}).output("told")] == ["1  1", "1"]
