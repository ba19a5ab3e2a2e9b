"""Event time of window results: the end of the window, or without an end the time of what fired it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import ClassVar

from domains import Visit, ms_of
from emission_times import (
    Seen,
    Word,
    count_windows,
    counts_of,
    look,
    run_visits,
    times_of,
    visits_of,
    words_of,
)

import penstock as ps
from penstock.base.instants import MILLISECOND, milliseconds_of
from penstock.operators.event_times import EVENT_TIME
from penstock.testing.batch_runner import NOW, BatchRunner

NOW_MS = milliseconds_of(NOW)


class FirstNumber(ps.WindowFunction):
    def process(self, key: str, found: Sequence[Visit], ctx: ps.WindowContext) -> Iterator[Word]:
        yield Word(key, f"{found[0].number}")


def test_reduced_records_count_at_the_end_of_their_window() -> None:
    """The record's own time could be too old for a second window."""
    job = ps.Job("j", key_groups=3)
    windows = visits_of(job).key_by("user").window(ps.TumblingWindows("20ms"))
    first = windows.reduce("first", lambda one, other: one)
    again = first.key_by("user").window(ps.TumblingWindows("5ms")).count("again")
    again.sink_to("again")
    again.side_output("late").sink_to("late")
    result = run_visits(BatchRunner(job), Visit("a", 1), Visit("a", 18), Visit("a", 50))
    assert counts_of(result, "again") == [(15, 1)]
    assert not result.output("late")


class AtStart(ps.WindowFunction):
    side_outputs: ClassVar = {"aside": Word}

    def process(self, key: str, found: Sequence[Visit], ctx: ps.WindowContext) -> Iterator[Visit]:
        ctx.side_output("aside", Word(key, "aside"))
        yield Visit(key, ctx.window.start)


def test_a_window_function_may_say_the_time_itself() -> None:
    """The stream's time field gives it; side outputs without that field get the window's end."""
    job = ps.Job("j", key_groups=3)
    first = visits_of(job).key_by("user").window(ps.TumblingWindows("20ms")).process("first", AtStart())
    assert first.origin.time == "at"
    look(first.side_output("aside"))
    count_windows(first.key_by("user"), "again", "5ms")
    result = run_visits(BatchRunner(job), Visit("a", 18), Visit("a", 50))
    assert counts_of(result, "again") == [(0, 1)]
    assert times_of(result) == [("aside", 19)]


class Remind(ps.ProcessFunction):
    """Sets a timer some time after a record's time, which is in no field."""

    def process_record(self, word: Word, ctx: ps.Context) -> None:
        assert ctx.event_time is not None
        ctx.timers.register(ctx.event_time + 20 * MILLISECOND, word.text, domain="event")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(ctx.key, timer.name, ms_of(ctx.event_time))


def test_timers_go_by_the_times_of_windows() -> None:
    """The timer's output has the timer's time in later windows."""
    job = ps.Job("j", key_groups=3)
    words = visits_of(job).key_by("user").window(ps.TumblingWindows("10ms")).process("first", FirstNumber())
    reminded = words.key_by("key").process("remind", Remind(), output=Seen)
    reminded.sink_to("reminded")
    count_windows(reminded.key_by("key"), "again")
    running = BatchRunner(job, parallelism=2)
    run_visits(running, Visit("a", 3, 7), Visit("a", 12))
    result = run_visits(running, Visit("a", 31))
    assert times_of(result, "reminded") == [("7", 29)]
    assert counts_of(result, "again") == [(20, 1)]


def test_late_records_keep_their_time() -> None:
    """This includes times that travel outside the fields."""
    job = ps.Job("j", key_groups=3)
    visits, words = visits_of(job), words_of(visits_of(job, name="others"))
    for name, keyed in (("field", visits.key_by("user")), ("beside", words.key_by("key"))):
        late = keyed.window(ps.TumblingWindows("10ms")).count(name).side_output("late")
        assert (late.origin.time == EVENT_TIME) == (name == "beside")
        key = "key" if name == "beside" else "user"
        again = late.key_by(key).window(ps.TumblingWindows("5ms")).allowed_lateness("1h")
        again.count(f"{name}-late").sink_to(name)
    running = BatchRunner(job)
    for at in (100, 7):
        result = running.run({stream: [("p", [Visit("a", at)])] for stream in ("visits", "others")})
    assert counts_of(result, "field") == counts_of(result, "beside") == [(5, 1)]


def test_windows_without_an_end_count_at_what_fired_them() -> None:
    """That is the record or the event-time timer; at the end of time there is none."""
    job = ps.Job("j", key_groups=3)
    keyed = visits_of(job).key_by("user")
    look(keyed.window(ps.CountWindows(2)).process("two", FirstNumber()), "pairs")
    every = keyed.window(ps.GlobalWindows()).trigger(ps.ContinuousEventTimeTrigger("10ms"))
    look(every.process("all", FirstNumber()), "every")
    running = BatchRunner(job)
    result = run_visits(running, Visit("a", 12, 1), Visit("a", 8, 2), Visit("a", 25, 3))
    assert (times_of(result, "pairs"), times_of(result, "every")) == ([("1", 8)], [("1", 20)])
    assert times_of(run_visits(running, ends=True), "every") == [("1", 30), ("1", None)]


def test_windows_by_the_clock_count_at_their_last_millisecond() -> None:
    """The visits' own times do not count."""
    job = ps.Job("j", key_groups=3)
    by_clock = visits_of(job).key_by("user").window(ps.TumblingWindows("1s", time="processing"))
    look(by_clock.process("first", FirstNumber()))
    running = BatchRunner(job)
    run_visits(running, Visit("a", 12, 1))
    running.now += dt.timedelta(seconds=1)
    assert times_of(run_visits(running)) == [("1", NOW_MS + 999)]


def test_windows_behind_windows_by_ingestion_time() -> None:
    """The first count arrivals of a second, and the second count those results."""
    job = ps.Job("j", key_groups=3)
    visits = visits_of(job, ps.INGESTION_TIME).key_by("user")
    first = visits.window(ps.TumblingWindows("1s")).count("first").key_by("user")
    first.window(ps.TumblingWindows("1s")).sum("again", "value").sink_to("again")
    pairs = first.window(ps.CountWindows(1)).trigger(ps.CountTrigger(1)).sum("pairs", "value")
    count_windows(pairs.key_by("user"), "third", "1s")
    running = BatchRunner(job)
    run_visits(running, Visit("a", 0), Visit("a", 0))
    running.now += dt.timedelta(seconds=1)
    result = run_visits(running, Visit("a", 0))
    assert counts_of(result, "again") == [(NOW_MS, 2.0)]
    assert counts_of(result, "third") == [(NOW_MS, 1.0)]


def test_the_clock_fires_global_windows_by_ingestion_time_when_it_is() -> None:
    """Arriving records have the arrival time, and so do results fired by a processing-time timer."""
    job = ps.Job("j", key_groups=3)
    every = visits_of(job, ps.INGESTION_TIME).key_by("user").window(ps.GlobalWindows())
    look(every.trigger(ps.ContinuousProcessingTimeTrigger("1s")).process("all", FirstNumber()), "every")
    running = BatchRunner(job)
    run_visits(running, Visit("a", 0, 5))
    running.now += dt.timedelta(seconds=2)
    assert set(times_of(run_visits(running), "every")) == {("5", NOW_MS + 2000)}
