"""Event time in whole jobs over micro-batches, against plain Python: watermarks, timers, ends, impossible
times.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from domains import ms_of
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.control.receipts import StepTime
from penstock.errors import JobDefinitionError
from penstock.operators.watermarks import END_MS
from penstock.runtime.packed_rows import WATERMARKS, watermark_updates_of
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.sources.base import SourceChunk
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner


@dataclass
class Visit:
    """A visit at a time, which requests a timer some milliseconds later."""

    key: str
    at: int | None
    timer: int | None = None


@dataclass
class Told:
    key: str
    text: str
    at: int = 0


class Visits(ps.ProcessFunction):
    """Registers event-time timers, and emits the watermark that it sees."""

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Told]:
        if visit.timer is not None:
            at = EPOCH + (visit.at + visit.timer) * MILLISECOND  # type: ignore[operator]
            ctx.timers.register(at, "again" if visit.timer % 2 else "", domain="event")
        yield Told(visit.key, f"came at watermark {ms_of(ctx.watermark)}", visit.at or 0)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Told]:
        assert timer.domain == "event"
        assert ctx.event_time == timer.at
        at = ms_of(timer.at)
        if timer.name:
            ctx.timers.register(timer.at + 5 * MILLISECOND, domain="event")
        yield Told(ctx.key, f"timer at watermark {ms_of(ctx.watermark)}", at or 0)


class Seen(ps.ProcessFunction):
    """A step after another one."""

    def process_record(self, told: Told, ctx: ps.Context) -> Iterator[Told]:
        ctx.timers.register(EPOCH + told.at * MILLISECOND, domain="event")
        return iter(())

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Told]:
        yield Told(ctx.key, f"{ms_of(ctx.watermark)}", ms_of(timer.at) or 0)


def job_of(
    watermarks: ps.Watermarks | None = None,
    *,
    partitions: int = 2,
    event_time: str = "at",
    topic: tuple[str, ...] = (),
    function: ps.ProcessFunction | None = None,
) -> BatchRunner:
    job = ps.Job("j", key_groups=4)
    given = None if event_time == ps.INGESTION_TIME else watermarks or ps.Watermarks.bounded("10ms")
    visits = job.data_stream("visits", schema=Visit, event_time=event_time, watermarks=given)
    told = visits.key_by("key").process("first", function or Visits(), output=Told)
    told.sink_to("told")
    told.key_by("key").process("second", Seen(), output=Told).sink_to("seen")
    return BatchRunner(job, parallelism=partitions, partitions={"visits": topic} if topic else None)


def told_by(job: BatchRunner, *visits: Visit, ends: bool = False) -> list[tuple[str, int]]:
    result = job.run({"visits": [("p", visits)]} if visits else {}, ends=ends)
    assert not result.dead_letters
    return [(one.text, one.at) for one in result.output("told")]


def test_the_watermark_moves_behind_the_records_of_a_micro_batch() -> None:
    """It trails the newest record by the declared delay plus one millisecond, since others of that time may
    come.
    """
    job = job_of()
    assert told_by(job, Visit("a", 100), Visit("a", 50)) == [
        ("came at watermark None", 100),
        ("came at watermark None", 50),
    ]
    assert told_by(job, Visit("a", 60)) == [("came at watermark 89", 60)]
    assert told_by(job, Visit("a", 200)) == [("came at watermark 89", 200)]
    assert told_by(job, Visit("a", 10)) == [("came at watermark 189", 10)]


def test_timers_fire_when_the_watermark_reaches_them() -> None:
    """This includes timers already due when they are registered, and those set by other timers; each fires
    once.
    """
    job = job_of()
    told_by(job, Visit("a", 100, 39))
    assert told_by(job, Visit("a", 149)) == [("came at watermark 89", 149)]
    assert told_by(job, Visit("a", 155, -100)) == [
        ("came at watermark 138", 155),
        ("timer at watermark 144", 55),
        ("timer at watermark 144", 139),
        ("timer at watermark 144", 144),
    ]
    assert told_by(job, Visit("a", 500)) == [("came at watermark 144", 500)]


def test_a_step_behind_another_is_at_its_watermark_in_the_same_micro_batch() -> None:
    job = job_of()
    result = job.run({"visits": [("p", [Visit("a", 100), Visit("b", 300)])]})
    assert [(one.key, one.text, one.at) for one in result.output("seen")] == [("a", "289", 100)]
    result = job.run({"visits": [("p", [Visit("c", 400)])]})
    assert [(one.key, one.text, one.at) for one in result.output("seen")] == [("b", "389", 300)]


def test_at_the_end_all_timers_fire_and_time_goes_on_in_a_later_run() -> None:
    job = job_of()
    told_by(job, Visit("a", 100, 4000))
    (fired,) = told_by(job, ends=True)
    assert fired[1] == 4100
    assert told_by(job, Visit("a", 90)) == [("came at watermark 89", 90)]


def test_the_partition_of_a_topic_that_is_furthest_behind_counts() -> None:
    """A partition without records yet holds time back, until it is idle."""
    job = job_of(ps.Watermarks.bounded("0s").with_idleness("1m"), topic=("0", "1"))
    job.run({"visits": [("0", [Visit("a", 100)])]})
    assert told_by_topic(job, "0", Visit("a", 200)) == "came at watermark None"
    job.now += dt.timedelta(minutes=1)
    assert told_by_topic(job, "0", Visit("a", 300)) == "came at watermark None"
    assert told_by_topic(job, "1", Visit("a", 250)) == "came at watermark 299"
    assert told_by_topic(job, "0", Visit("a", 400)) == "came at watermark 299"
    assert told_by_topic(job, "1", Visit("a", 350)) == "came at watermark 299"
    assert told_by_topic(job, "1", Visit("a", 350)) == "came at watermark 349"


def times_of(result: BatchOutcome) -> dict[str, set[StepTime]]:
    return {step: result.times(step) for step in ("first", "second")}


def test_each_step_tells_how_far_it_is_and_what_holds_it() -> None:
    """It reports in each micro-batch; when all inputs are idle, only an earlier step can hold it back."""
    job = job_of(ps.Watermarks.bounded("0s").with_idleness("1m"), topic=("0", "1"))
    result = job.run({"visits": [("0", [Visit("a", 100)])]})
    assert times_of(result) == {"first": {StepTime(None, "visits/1")}, "second": {StepTime(None, "first")}}
    result = job.run({"visits": [("1", [Visit("a", 150)])]})
    assert times_of(result) == {"first": {StepTime(99, "visits/0")}, "second": {StepTime(99, "first")}}
    job.now += dt.timedelta(seconds=59)
    result = job.run({"visits": [("1", [Visit("a", 200)])]})
    assert times_of(result)["first"] == {StepTime(99, "visits/0")}
    job.now += dt.timedelta(seconds=1)
    assert times_of(job.run({}))["first"] == {StepTime(199, "visits/1")}
    job.now += dt.timedelta(minutes=1)
    assert times_of(job.run({}))["first"] == {StepTime(199)}
    assert times_of(job.run({}, ends=True))["first"] == {StepTime(199)}


def told_by_topic(job: BatchRunner, partition: str, visit: Visit) -> str:
    (told,) = job.run({"visits": [(partition, [visit])]}).output("told")
    text: str = told.text
    return text


def test_an_input_falls_idle_while_nothing_comes() -> None:
    job = job_of(ps.Watermarks.bounded("0s").with_idleness("1m"), topic=("0", "1"))
    job.run({"visits": [("0", [Visit("a", 100), Visit("a", 50, 4)])]})
    assert not job.run({}).output("told")
    job.now += dt.timedelta(minutes=1)
    assert [one.at for one in job.run({}).output("told")] == [54]
    assert not job.run({}).output("told")


def test_ingestion_time_is_that_of_the_micro_batch() -> None:
    """It advances without input, as the clock does."""
    job = job_of(event_time=ps.INGESTION_TIME)
    now = ms_of(NOW)
    assert now is not None
    told_by(job, Visit("a", now, 3000))
    job.now += dt.timedelta(seconds=2)
    assert told_by(job, Visit("a", None)) == [(f"came at watermark {now - 1}", 0)]
    job.now += dt.timedelta(seconds=2)
    assert told_by(job) == [(f"timer at watermark {now + 3999}", now + 3000)]


def test_records_without_a_time_or_from_far_ahead_are_dead_letters() -> None:
    """They do not move the watermark; times before 1970 are valid."""
    job = job_of(ps.Watermarks.monotonous().with_max_ahead("1h"))
    now = ms_of(NOW)
    assert now is not None
    ahead = now + 3_600_000
    visits = [Visit("a", None), Visit("a", ahead + 1), Visit("b", ahead), Visit("c", -5)]
    result = job.run({"visits": [("p", visits)]})
    missing, impossible = result.dead_letters
    assert missing.reason == "the record has no event time: its field 'at' is null"
    assert impossible.reason == (
        "the event time 2026-11-21T01:00:00.001000+00:00 is 3600001 ms ahead of the clock, more than the "
        "3600000 ms that with_max_ahead allows"
    )
    assert [letter.offset for letter in result.dead_letters] == [0, 1]
    assert {one.key for one in result.output("told")} == {"b", "c"}
    assert told_by(job, Visit("d", 7)) == [(f"came at watermark {ahead - 1}", 7)]


class UpToMarkers(ps.WatermarkGenerator):
    """A watermark generator that uses marker records, and one at the end of each part."""

    def __init__(self) -> None:
        self.seen = 0

    def on_record(self, record: Any, time_ms: int) -> int | None:
        self.seen += 1
        return time_ms if record.key == "mark" else None

    def on_batch(self) -> int | None:
        return 1000 if self.seen == 3 else None


def test_a_generator_of_your_own_tells_watermarks() -> None:
    job = job_of(ps.Watermarks.custom(UpToMarkers))
    told_by(job, Visit("mark", 100), Visit("a", 500))
    assert told_by(job, Visit("a", 9), Visit("b", 9), Visit("c", 9))[0] == ("came at watermark 100", 9)
    assert told_by(job, Visit("a", 9)) == [("came at watermark 1000", 9)]


def test_a_generator_sees_all_that_a_task_reads_of_a_partition() -> None:
    """Records come in order, in any number of chunks; afterwards the generator is asked once for a watermark."""
    job = ps.Job("j", key_groups=1)
    visits = job.data_stream(
        "visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.custom(UpToMarkers)
    )
    visits.key_by("key").process("first", Visits(), output=Told).sink_to("told")
    plan = JobPlan(job.graph, 1, frozenset(), frozenset(), strict=False, partitions={"visits": ("0", "1")})
    (node,) = job.graph.sources()
    chunks = [
        SourceChunk(partition, pa.array([number], pa.int64()), batch=node.record_type.batch([Visit(key, 5)]))
        for number, (partition, key) in enumerate([("0", "a"), ("0", "a"), ("1", "mark"), ("0", "a")])
    ]
    rows = list(StreamReader(plan, node, None).rows(chunks))
    (update,) = watermark_updates_of([row for row in rows if row.destination == WATERMARKS])
    assert update.watermarks == {"0": 1000, "1": 5}


def test_without_watermarks_time_stands_until_the_end() -> None:
    job = job_of(ps.Watermarks.none())
    told_by(job, Visit("a", 100, 2))
    assert told_by(job, Visit("a", 10_000)) == [("came at watermark None", 10_000)]
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    assert told_by(job, ends=True) == [(f"timer at watermark {ms_of(last)}", 102)]
    assert (ms_of(last) or 0) < END_MS


def test_a_timer_by_event_time_needs_watermarks() -> None:
    job = ps.Job("j", key_groups=2)
    visits = job.data_stream("visits", schema=Visit, event_time="at")
    visits.key_by("key").process("step", Visits(), output=Told).sink_to("told")
    result = BatchRunner(job).run({"visits": [("p", [Visit("a", 5, 5)])]})
    (letter,) = result.dead_letters
    assert "declare the stream with event_time= and watermarks=" in letter.reason


@pytest.mark.parametrize("event_time", [None, ps.INGESTION_TIME])
def test_watermarks_follow_from_a_field(event_time: str | None) -> None:
    with pytest.raises(JobDefinitionError, match="'visits' has watermarks but no field with the event time"):
        ps.Job("j").data_stream(
            "visits", schema=Visit, event_time=event_time, watermarks=ps.Watermarks.monotonous()
        )


def test_a_paused_step_stands_still_and_then_catches_up() -> None:
    """Held records are not late, however far its inputs have advanced."""
    job = job_of()
    told_by(job, Visit("a", 100, 10))
    pause = commands(command_to("first", "pause"))
    assert not job.run({**pause, "visits": [("p", [Visit("a", 500, -100)])]}).output("told")
    assert not told_by(job, Visit("a", 105))
    told = job.run(commands(command_to("first", "resume"))).output("told")
    assert [(one.text, one.at) for one in told] == [
        ("came at watermark 89", 500),
        ("came at watermark 89", 105),
        ("timer at watermark 489", 110),
        ("timer at watermark 489", 400),
    ]


VISITS = st.builds(
    Visit,
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(-20, 60),
    st.none() | st.integers(-30, 30).map(lambda n: 2 * n),
)


@examples(20)
@given(st.lists(st.tuples(st.lists(VISITS, max_size=5), st.booleans()), max_size=8), st.integers(1, 4))
def test_every_timer_fires_once_at_its_watermark(batches: Any, partitions: int) -> None:
    """Any number of tasks gives the result of plain Python, and so does a replay."""
    job = job_of(partitions=partitions)
    waiting: set[tuple[int, str]] = set()
    watermark: int | None = None
    for visits, ends in [*batches, ([], True)]:
        expected = [Told(v.key, f"came at watermark {watermark}", v.at or 0) for v in visits]
        for visit in visits:
            if visit.timer is not None and visit.at is not None:
                waiting.add((visit.at + visit.timer, visit.key))
        times = [visit.at for visit in visits if visit.at is not None]
        if times:
            newest = max(times) - 11
            watermark = newest if watermark is None else max(watermark, newest)
        after = END_MS if ends else watermark
        due = sorted(timer for timer in waiting if after is not None and timer[0] <= after)
        waiting -= set(due)
        told = run_and_replay(job, {"visits": [("p", visits)]} if visits else {}, ends=ends).output("told")
        for key in "abcd":
            mine = [one for one in told if one.key == key]
            came = [one for one in expected if one.key == key]
            assert mine[: len(came)] == came
            assert [one.at for one in mine[len(came) :]] == [at for at, name in due if name == key]
