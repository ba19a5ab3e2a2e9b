"""The job harness: the effect of each call on a job; a crash reveals forbidden behaviour."""

from __future__ import annotations

import datetime as dt
import doctest
import itertools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import (
    CommandRefusedError,
    JobDefinitionError,
    SchemaError,
    StateError,
    StrictModeError,
    UnknownIdError,
)
from penstock.testing import JobHarness, ReplayMismatchError
from penstock.testing.batch_runner import NOW


@dataclass
class Visit:
    """Somebody came by a door."""

    door: str
    people: int


class Count(ps.ProcessFunction):
    """Counts people by door, and emits who was there a minute after the clock's start."""

    people = ps.ValueState(int)
    least = ps.Setting(int, 0)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Any:
        total = (self.people.get() or 0) + visit.people
        self.people.set(total)
        ctx.timers.register(NOW + dt.timedelta(minutes=1), "minute")
        if total >= self.least.get():
            yield Visit(visit.door, total)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Any:
        yield Visit(f"{ctx.key} at last", self.people.get() or 0)


CALLS = itertools.count()


class Forgetful(ps.ProcessFunction):
    """Counts in a module variable, which a repeated job does not have."""

    def process_record(self, visit: Visit, ctx: ps.Context) -> Any:
        yield Visit(visit.door, next(CALLS))


def doors(function: ps.ProcessFunction | None = None) -> ps.Job:
    job = ps.Job("doors", key_groups=8)
    visits = job.data_stream("visits", schema=Visit)
    visits.key_by("door").process("count", function or Count(), output=Visit).sink_to("seen")
    return job


def counted(*visits: Visit, **options: Any) -> JobHarness:
    """Return a harness after one micro-batch of visits."""
    run = JobHarness(doors(), **options)
    run.send("visits", *visits)
    run.run_batch()
    return run


def test_the_examples_of_the_docstrings_run_one_after_the_other() -> None:
    """They build on the first, in the order of the methods."""
    names: dict[str, Any] = {"ps": ps, "JobHarness": JobHarness}
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    found = doctest.DocTestFinder().find(JobHarness, "JobHarness", globs=names)
    for test in sorted(found, key=lambda test: test.lineno or 0):
        test.globs = names
        runner.run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)
    assert runner.tries > 20


def test_objects_dicts_bytes_and_text_are_the_same_record() -> None:
    """This holds in lists, too."""
    run = counted(
        Visit("north", 1),
        {"door": "north", "people": 1},
        b'{"door":"north","people":1}',
        '{"door":"north","people":1}',
    )
    run.send("visits", [Visit("north", 1)])
    assert run.run_batch().output("seen") == [Visit("north", 5)]
    assert [visit.people for visit in run.output("seen")] == [1, 2, 3, 4, 5]


def test_what_is_no_record_is_refused_where_it_is_sent() -> None:
    """So are unknown streams, sinks and steps."""
    run = JobHarness(doors())
    with pytest.raises(SchemaError, match="is not a record of the stream 'visits'"):
        run.send("visits", 5)
    with pytest.raises(UnknownIdError, match="no stream 'visit'; it has visits, commands"):
        run.send("visit", Visit("north", 1))
    with pytest.raises(UnknownIdError, match="no sink 'saw'; it has seen"):
        run.output("saw")
    with pytest.raises(UnknownIdError, match="no step 'counts'"):
        run.state("counts")
    with pytest.raises(UnknownIdError, match="no step 'counts'"):
        run.settings("counts")


def test_what_cannot_be_read_is_a_dead_letter() -> None:
    """It has its position and its bytes; other records are processed."""
    run = JobHarness(doors())
    run.send("visits", b"no JSON", Visit("north", 1))
    assert run.run_batch().output("seen") == [Visit("north", 1)]
    assert [(one.stream, one.raw) for one in run.dead_letters()] == [("visits", b"no JSON")]


def test_a_strict_harness_raises() -> None:
    """It raises for the first record that cannot be processed."""
    run = JobHarness(doors(), strict=True)
    run.send("visits", b"no JSON")
    with pytest.raises(StrictModeError):
        run.run_batch()


def test_a_command_changes_a_setting() -> None:
    """It holds from the records of its micro-batch on; receipts and `settings` show it."""
    run = JobHarness(doors())
    assert run.settings("count") == {"least": 0}
    command = run.send_command("set", "count", {"least": 3}, id="mine", issued_by="ann")
    run.send("visits", Visit("north", 2), Visit("north", 2))
    assert run.run_batch().output("seen") == [Visit("north", 4)]
    assert command == "mine"
    assert [receipt.status for receipt in run.receipts("mine")] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    assert run.receipts("another") == []
    assert run.settings("count") == {"least": 3}


def test_a_command_changes_the_state_of_a_key() -> None:
    """The command is like one from the job's owner."""
    run = counted(Visit("north", 1))
    run.send_command("set", "count/north", {"people": 10})
    run.run_batch()
    assert run.state("count", key="north") == {"people": 10}


def test_a_command_that_the_job_does_not_take_is_refused() -> None:
    """The error comes at the call that sends it."""
    with pytest.raises(CommandRefusedError):
        JobHarness(doors()).send_command("dance", "count")


def test_state_is_seen_by_key() -> None:
    """Of all keys, of one, of one that holds nothing, and not of what is no key."""
    run = counted(Visit("south", 2), Visit("north", 1), parallelism=3)
    assert run.state("count") == {"north": {"people": 1}, "south": {"people": 2}}
    assert run.state("count", key="south") == {"people": 2}
    assert run.state("count", key="east") is None
    with pytest.raises(StateError, match="is not a key of the step 'count'"):
        run.state("count", key=5)


def test_a_timer_fires_once_the_clock_has_passed_it() -> None:
    """In the next micro-batch, and not before."""
    run = counted(Visit("north", 1))
    run.advance_clock("59s")
    assert run.run_batch().output("seen") == []
    run.advance_clock("1s")
    assert run.run_batch().output("seen") == [Visit("north at last", 1)]
    assert run.run_batch().output("seen") == []


def windows() -> ps.Job:
    job = ps.Job("windows", key_groups=4)
    visits = job.data_stream(
        "visits", schema="door STRING, at BIGINT", event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    visits.key_by("door").window(ps.TumblingWindows("10s")).count("count").sink_to("counts")
    return job


def test_a_watermark_ends_windows() -> None:
    """Of the stream that claims it; those of later times wait until time ends."""
    run = JobHarness(windows(), parallelism=2)
    run.send("visits", {"door": "north", "at": 1_000}, {"door": "north", "at": 11_000})
    run.send("visits", {"door": "south", "at": 12_000})
    run.advance_watermark("visits", 10_000)
    assert len(run.run_batch().output("counts")) == 1
    assert run.run_batch().output("counts") == []
    assert len(run.finish().output("counts")) == 2


def test_a_stream_without_watermarks_claims_none() -> None:
    """The error says how to declare some."""
    with pytest.raises(JobDefinitionError, match="has no watermarks"):
        JobHarness(doors()).advance_watermark("visits", 5)


def test_a_crash_repeats_the_last_micro_batch() -> None:
    """Nothing is counted twice, and what was sent meanwhile is still there."""
    run = counted(Visit("north", 1), Visit("south", 1), Visit("north", 1), parallelism=3)
    seen = run.output("seen")
    run.send("visits", Visit("north", 1))
    run.crash()
    assert run.output("seen") == seen
    assert run.state("count", key="north") == {"people": 2}
    assert run.run_batch().output("seen") == [Visit("north", 3)]
    assert JobHarness(doors()).crash() is None


def test_a_crash_shows_what_goes_by_more_than_state_and_records() -> None:
    """With the record that differs."""
    run = JobHarness(doors(Forgetful()))
    run.send("visits", Visit("north", 1))
    run.run_batch()
    with pytest.raises(
        ReplayMismatchError, match=r"the sink 'seen' got Visit\(.*\) as number 1, and Visit\("
    ):
        run.crash()


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_a_rescaled_job_goes_on(tasks: int) -> None:
    """With its states, its settings and its timers."""
    run = counted(Visit("north", 1), Visit("south", 2), parallelism=3)
    run.send_command("set", "count", {"least": 3})
    run.run_batch()
    run.rescale(tasks)
    assert run.state("count") == {"north": {"people": 1}, "south": {"people": 2}}
    run.send("visits", Visit("north", 1), Visit("south", 1))
    assert run.run_batch().output("seen") == [Visit("south", 3)]
    run.restart()
    run.advance_clock("1m")
    assert {visit.door for visit in run.run_batch().output("seen")} == {"north at last", "south at last"}


def test_a_job_has_from_one_task_to_its_key_groups() -> None:
    """At the start, and when it is rescaled."""
    with pytest.raises(JobDefinitionError, match="from 1 to 8"):
        JobHarness(doors(), parallelism=9)
    with pytest.raises(JobDefinitionError, match="from 1 to 8"):
        JobHarness(doors()).rescale(0)


def test_a_job_begins_from_a_savepoint(tmp_path: Path) -> None:
    """From the object, and from the folder; the job that made it continues."""
    run = counted(Visit("north", 1), parallelism=2)
    saved = run.savepoint(tmp_path / "saved")
    run.send("visits", Visit("north", 1))
    run.run_batch()
    for source in (saved, tmp_path / "saved", run.savepoint()):
        later = JobHarness(doors(), parallelism=3, from_savepoint=source)
        later.send("visits", Visit("north", 5))
        assert later.run_batch().output("seen")[0].people in (6, 7)
        later.crash()
    assert run.state("count", key="north") == {"people": 2}


def test_the_report_tells_of_the_last_micro_batch() -> None:
    """What came in, what left, and what could not be read."""
    run = JobHarness(doors())
    run.send("visits", Visit("north", 1), b"no JSON")
    run.send_command("set", "count", {"least": 1})
    run.run_batch()
    report = run.report()
    for text in (
        "in, visits:",
        "out, seen:",
        "Visit(door='north', people=1)",
        "command-1 APPLIED set",
        "b'no JSON'",
    ):
        assert text in report


MOVES = st.sampled_from(["go on", "crash", "restart", "rescale", "savepoint"])
VISITS = st.lists(st.builds(Visit, st.sampled_from("abcd"), st.integers(0, 9)), max_size=6)


@given(stages=st.lists(st.tuples(VISITS, MOVES, st.integers(1, 8)), max_size=6))
def test_a_job_gives_what_a_plain_fold_gives(stages: list[tuple[list[Visit], str, int]]) -> None:
    """Whatever happens to it between micro-batches."""
    run = JobHarness(doors(), parallelism=2)
    total: dict[str, int] = defaultdict(int)
    for visits, move, tasks in stages:
        run.send("visits", *visits)
        expected: dict[str, list[Visit]] = defaultdict(list)
        for visit in visits:
            total[visit.door] += visit.people
            expected[visit.door].append(Visit(visit.door, total[visit.door]))
        found: dict[str, list[Visit]] = defaultdict(list)
        for visit in run.run_batch().output("seen"):
            found[visit.door].append(visit)
        assert found == expected
        if move == "crash":
            run.crash()
        elif move == "restart":
            run.restart()
        elif move == "rescale":
            run.rescale(tasks)
        elif move == "savepoint":
            run = JobHarness(doors(), parallelism=tasks, from_savepoint=run.savepoint())
    assert run.state("count") == {door: {"people": people} for door, people in sorted(total.items())}
