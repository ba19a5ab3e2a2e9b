"""Streams with another event time: `with_event_time` names the field that counts from there on."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import msgspec
import pytest
from domains import Visit
from emission_times import Word, count_windows, counts_of, look, run_visits, times_of, visits_of

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND, milliseconds_of
from penstock.errors import JobDefinitionError, SchemaError
from penstock.testing.batch_runner import NOW, BatchRunner

NOW_MS = milliseconds_of(NOW)


@dataclass
class Paid:
    """A record with a time of another name."""

    key: str
    paid_at: dt.datetime | None


def paid_later(visit: Visit) -> Paid:
    return Paid(visit.user, None if visit.number == 13 else EPOCH + (visit.at + 5) * MILLISECOND)


def test_with_event_time_another_field_counts() -> None:
    """From there on, also behind a map that drops it; watermarks stay those of the stream."""
    job = ps.Job("j", key_groups=3)
    paid = visits_of(job, bound="20ms").map(paid_later).with_event_time("paid_at")
    assert paid.origin.time == "paid_at"
    paid.sink_to("paid")
    count_windows(paid.key_by("key"), "counts")
    look(paid.map(lambda one: Word(one.key, ""), output=Word))
    running = BatchRunner(job, parallelism=2)
    result = run_visits(running, Visit("a", 1, 1), Visit("b", 2, 13), Visit("a", 9, 2), Visit("a", 33, 3))
    (letter,) = result.dead_letters
    assert letter.reason == "the record has no event time: its field 'paid_at' is null"
    assert (msgspec.json.decode(letter.raw)["key"], letter.step) == ("b", "event-time/1")
    assert len(result.output("paid")) == 3
    assert times_of(result) == [("", 6), ("", 14), ("", 38)]
    assert counts_of(result, "counts") == [(0, 1)]
    assert not run_visits(running, ends=True).counts("late")


def test_with_event_time_the_field_of_a_result_counts() -> None:
    """In place of the end of its window; the second window must allow for that."""
    job = ps.Job("j", key_groups=3)
    counts = visits_of(job).key_by("user").window(ps.TumblingWindows("10ms")).count("counts")
    started = counts.with_event_time("window_start").key_by("user")
    started.window(ps.TumblingWindows("5ms")).allowed_lateness("10ms").count("again").sink_to("again")
    result = run_visits(BatchRunner(job), Visit("a", 1), Visit("a", 18))
    assert counts_of(result, "again") == [(0, 1)]


def test_with_event_time_works_on_what_arrives() -> None:
    """Records that had no time but that of their arrival have one; watermarks go by the clock."""
    job = ps.Job("j", key_groups=3)
    count_windows(visits_of(job, ps.INGESTION_TIME).with_event_time("at").key_by("user"), "counts")
    running = BatchRunner(job)
    run_visits(running, Visit("a", NOW_MS + 3))
    running.now += dt.timedelta(seconds=1)
    assert counts_of(run_visits(running), "counts") == [(NOW_MS, 1)]


def test_with_event_time_needs_a_field_with_times() -> None:
    """A field that is not there is refused, and one that cannot be a time."""
    visits = visits_of(ps.Job("j"))
    with pytest.raises(
        SchemaError, match="The stream 'visits': Visit has no field 'when'; its fields are user, at"
    ):
        visits.with_event_time("when")
    with pytest.raises(
        SchemaError, match="The stream 'visits': the field 'user' is string, and cannot be a time"
    ):
        visits.with_event_time("user")


def test_with_event_time_needs_data_with_watermarks() -> None:
    """Control streams say since when their records hold, and without watermarks nothing goes by the time."""
    job = ps.Job("j")
    control = job.control_stream("control", schema=Visit)
    with pytest.raises(JobDefinitionError, match=r"'control' is a control stream.* effective_at="):
        control.with_event_time("at")
    timeless = job.data_stream("timeless", schema=Visit, event_time="at")
    with pytest.raises(JobDefinitionError, match=r"'timeless' has no watermarks .*job.data_stream"):
        timeless.with_event_time("at")


def test_a_stream_with_another_time_that_nobody_reads_is_refused() -> None:
    """Whoever described it may have gone on with the stream before."""
    job = ps.Job("j")
    visits = visits_of(job)
    visits.with_event_time("at")
    visits.sink_to("visits")
    with pytest.raises(
        JobDefinitionError, match=r"Nothing reads .* whose event time is 'at'.*with_event_time returns"
    ):
        job.check()
