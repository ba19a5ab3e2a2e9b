"""The event time of what transforms and steps emit: it stays with the record, and steps behind go by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from domains import ms_of

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.event_times import EVENT_TIME
from penstock.streams.graph import Port
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner

NOW_MS = (NOW - EPOCH) // MILLISECOND


@dataclass
class Visit:
    key: str
    at: int
    number: int = 0


@dataclass
class Word:
    """A record without a time of its own."""

    key: str
    text: str


@dataclass
class Paid:
    """A record with a time of another name."""

    key: str
    paid_at: dt.datetime | None


@dataclass
class Seen:
    """What a step behind has seen: the word, and when it counts."""

    key: str
    text: str
    ms: int | None


class Look(ps.ProcessFunction):
    """Tells the event time of what comes."""

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(record.key, record.text, ms_of(ctx.event_time))


class ToWord(ps.ProcessFunction):
    """One word for each visit."""

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Word]:
        yield Word(visit.key, f"{visit.number}")


def stream_of(job: ps.Job, event_time: str = "at", bound: str = "0s", name: str = "visits") -> ps.DataStream:
    strategy = None if event_time == ps.INGESTION_TIME else ps.Watermarks.bounded(bound)
    return job.data_stream(name, schema=Visit, event_time=event_time, watermarks=strategy)


def look(stream: ps.DataStream, name: str = "look") -> None:
    stream.key_by("key").process(name, Look()).sink_to(name)


def words(stream: ps.DataStream) -> ps.DataStream:
    return stream.key_by("key").process("words", ToWord())


def run(job: BatchRunner, *visits: Visit, ends: bool = False) -> BatchOutcome:
    return job.run({"visits": [("p", visits)]} if visits else {}, ends=ends)


def seen(result: BatchOutcome, sink: str = "look") -> list[tuple[str, int | None]]:
    found = [(one.text, one.ms) for one in result.output(sink)]
    return sorted(found, key=lambda one: (one[0], one[1] is None, one[1]))


def to_word(visit: Visit) -> Word:
    if visit.number == 13:
        raise ValueError("thirteen")
    return Word(visit.key, f"{visit.number}")


def twice(word: Word) -> Iterable[Word]:
    return [word, Word(word.key, f"{word.text} again")] if word.text != "2" else []


def test_transforms_keep_the_time() -> None:
    """Of each record, whatever becomes of the others: dropped, doubled, or a dead letter."""
    job = ps.Job("j", key_groups=3)
    mapped = stream_of(job).filter(lambda visit: visit.number != 1).map(to_word)
    look(mapped.flat_map(twice, output=Word).filter(lambda word: word.text != "3"))
    visits = [Visit("a", 100 + n, n) for n in (0, 1, 2, 3, 13, 5)]
    result = run(BatchRunner(job, parallelism=2), *visits)
    assert seen(result) == [("0", 100), ("0 again", 100), ("3 again", 103), ("5", 105), ("5 again", 105)]
    assert [letter.reason.rsplit("\n", 1)[-1] for letter in result.dead_letters] == ["ValueError: thirteen"]


def test_windows_stand_behind_transforms_that_drop_the_field() -> None:
    job = ps.Job("j", key_groups=3)
    mapped = stream_of(job).map(to_word)
    mapped.key_by("key").window(ps.TumblingWindows("10ms")).count("counts").sink_to("counts")
    result = run(BatchRunner(job), Visit("a", 1), Visit("a", 9), Visit("a", 10))
    assert [(ms_of(one.window_start), one.value) for one in result.output("counts")] == [(0, 2.0)]


def test_a_field_of_the_same_name_counts() -> None:
    """What transforms and process functions write there is the time."""

    class Later(ps.ProcessFunction):
        def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Visit]:
            yield Visit(visit.key, visit.at + 7)

    job = ps.Job("j", key_groups=3)
    visits = stream_of(job)
    for name, stream in (
        ("step", visits.key_by("key").process("later", Later())),
        ("map", visits.map(lambda visit: Visit(visit.key, visit.at + 7), output=Visit)),
    ):
        assert stream.origin.time == "at"
        stream.key_by("key").window(ps.TumblingWindows("10ms")).count(name).sink_to(name)
    result = run(BatchRunner(job), Visit("a", 1), Visit("a", 5), Visit("a", 30))
    for name in ("step", "map"):
        assert [(ms_of(one.window_start), one.value) for one in result.output(name)] == [(0, 1.0), (10, 1.0)]


class Busy(ps.ConnectedProcessFunction):
    """Emits from everywhere: records, timers by both clocks, controls, commands, and by the side."""

    side_outputs: ClassVar = {"aside": Word, "copies": Visit}
    limit = ps.Setting(int, 0)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Word]:
        at = EPOCH + (visit.at + 5) * MILLISECOND - dt.timedelta(microseconds=300)
        ctx.timers.register(at, "event", domain="event")
        ctx.timers.register(NOW, "clock")
        ctx.side_output("aside", Word(visit.key, f"aside {visit.number}"))
        ctx.side_output("copies", visit)
        yield Word(visit.key, f"{visit.number}")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Word]:
        yield Word(ctx.key, f"timer {timer.name}")

    def process_control(self, control: Word, ctx: ps.Context) -> Iterator[Word]:
        yield Word("c", f"control {control.text}")

    @ps.on_command("tell", scope="step")
    def tell(self, text: str, ctx: ps.CommandContext) -> Iterator[Word]:
        yield Word("t", f"command {text}")


@dataclass
class Change:
    key: str
    text: str
    since: int | None


def busy_job() -> tuple[ps.Job, ps.ProcessedStream]:
    job = ps.Job("j", key_groups=3)
    changes = job.control_stream("changes", schema=Change, effective_at="since")
    keyed = changes.key_by("key")
    data = stream_of(job).key_by("key")
    return job, data.connect(keyed, changes.broadcast()).process("busy", Busy())


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_step_emits_counts_at_what_it_came_of(partitions: int) -> None:
    """The time of the record or the timer; of controls and commands that from which they hold, if there is one."""
    job, busy = busy_job()
    look(busy)
    look(busy.side_output("aside"), "aside")
    running = BatchRunner(job, parallelism=partitions)
    commands = [
        {"id": "1", "kind": "tell", "payload": "now", "target": {"step": "busy"}},
        {"id": "2", "kind": "tell", "payload": "then", "target": {"step": "busy"}}
        | {"effective_at": "1970-01-01T00:00:00.017Z"},
    ]
    result = running.run(
        {
            "commands": [("c", [msgspec.json.encode(command) for command in commands])],
            "changes": [("p", [Change("a", "old", 3), Change("a", "new", None)])],
            "visits": [("p", [Visit("a", 10, 1), Visit("b", 12, 2)])],
        }
    )
    assert not result.dead_letters
    assert seen(result) == [
        ("1", 10),
        ("2", 12),
        ("command now", None),
        ("command then", 17),
        ("control new", None),
        ("control new", None),
        ("control old", 3),
        ("control old", 3),
    ]
    assert seen(result, "aside") == [("aside 1", 10), ("aside 2", 12)]
    # The timer is due when the watermark has reached the millisecond behind it.
    assert seen(run(running, Visit("b", 16, 3))) == [
        ("3", 16),
        ("timer clock", None),
        ("timer clock", None),
        ("timer event", 15),
    ]


def test_side_outputs_have_times_of_their_own() -> None:
    """That with the field of the input goes by it, whatever the main output has."""
    _, busy = busy_job()
    assert busy.origin.time == busy.side_output("aside").origin.time == EVENT_TIME
    assert busy.side_output("copies").origin.time == "at"


def test_what_has_no_time_is_a_dead_letter_at_windows_by_event_time() -> None:
    """Windows that go without event time take it at the time of the micro-batch."""
    job, busy = busy_job()
    busy.key_by("key").window(ps.TumblingWindows("10ms")).count("counts").sink_to("counts")
    busy.key_by("key").window(ps.CountWindows(1)).process("each", Each()).sink_to("each")
    running = BatchRunner(job)
    run(running, Visit("a", 10, 1))
    result = run(running, Visit("a", 12, 2))
    (letter,) = result.dead_letters
    assert (letter.step, "emitted for a processing-time timer" in letter.reason) == ("counts", True)
    assert "with_event_time" in letter.reason
    assert sorted(one.text for one in result.output("each")) == ["2", "timer clock"]
    assert [one.value for one in run(running, ends=True).output("counts")] == [4.0]


class Each(ps.WindowFunction):
    def process(self, key: str, found: Sequence[Word], ctx: ps.WindowContext) -> Iterator[Word]:
        yield found[0]


class FirstNumber(ps.WindowFunction):
    def process(self, key: str, found: Sequence[Visit], ctx: ps.WindowContext) -> Iterator[Word]:
        yield Word(key, f"{found[0].number}")


def test_rolling_aggregates_keep_the_time() -> None:
    job = ps.Job("j", key_groups=3)
    sums = stream_of(job).key_by("key").sum("sums", "number")
    sums.key_by("key").window(ps.TumblingWindows("10ms")).max("highest", "value").sink_to("highest")
    result = run(BatchRunner(job), Visit("a", 1, 3), Visit("a", 9, 4), Visit("a", 10, 5))
    assert [(ms_of(one.window_start), one.value) for one in result.output("highest")] == [(0, 7.0)]


def test_what_records_are_reduced_to_counts_at_the_time_of_the_record() -> None:
    """Also where it is an older record, with its own time in its field."""
    job = ps.Job("j", key_groups=3)
    first = stream_of(job).key_by("key").reduce("first", lambda one, other: one)
    first.key_by("key").window(ps.TumblingWindows("10ms")).count("counts").sink_to("counts")
    result = run(BatchRunner(job), Visit("a", 1, 3), Visit("a", 12, 4), Visit("a", 20, 5))
    assert [(ms_of(one.window_start), one.value) for one in result.output("counts")] == [(0, 1), (10, 1)]


class Vectorised(ps.ProcessFunction):
    """Emits the even ones, backwards, and all aside."""

    side_outputs: ClassVar = {"all": Word}

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Word]:
        raise NotImplementedError

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]]]:
        numbers = records.column("number").to_numpy()
        if 13 in numbers:
            raise ValueError("thirteen")
        texts = [f"{number}" for number in numbers]
        batch = pa.RecordBatch.from_arrays([records.column("key"), pa.array(texts)], ["key", "text"])
        rows = np.flatnonzero(numbers % 2 == 0)[::-1].copy()
        ctx.side_output("all", batch, np.arange(len(numbers)))
        return batch.take(pa.array(rows)), rows


def test_columns_keep_the_times_of_their_rows() -> None:
    """Also where a batch is halved to find who is to blame."""
    job = ps.Job("j", key_groups=3)
    found = stream_of(job).key_by("key").process("columns", Vectorised())
    look(found)
    look(found.side_output("all"), "all")
    result = run(BatchRunner(job), *(Visit("ab"[n % 2], 10 * n, n) for n in (1, 2, 3, 13, 4)))
    assert len(result.dead_letters) == 1
    assert seen(result) == [("2", 20), ("4", 40)]
    assert seen(result, "all") == [("1", 10), ("2", 20), ("3", 30), ("4", 40)]


def test_steps_without_a_key_keep_the_time() -> None:
    job = ps.Job("j", key_groups=3)
    found = stream_of(job).process("words", ToWord())
    look(found)
    found.process("parts", Look()).sink_to("parts")
    words_of_keys = found.key_by("key").process("same", Same())
    words_of_keys.process("parts of keys", Look()).sink_to("parts-of-keys")
    result = run(BatchRunner(job, parallelism=2), Visit("a", 1, 1), Visit("b", 5, 2))
    for sink in ("look", "parts", "parts-of-keys"):
        assert seen(result, sink) == [("1", 1), ("2", 5)]


class Same(ps.ProcessFunction):
    def process_record(self, word: Word, ctx: ps.Context) -> Iterator[Word]:
        yield word


class Remind(ps.ProcessFunction):
    """Sets a timer a while behind what came, by a time that is in no field."""

    def process_record(self, word: Word, ctx: ps.Context) -> None:
        assert ctx.event_time is not None
        ctx.timers.register(ctx.event_time + 20 * MILLISECOND, word.text, domain="event")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(ctx.key, timer.name, ms_of(ctx.event_time))


def test_timers_go_by_the_times_of_windows() -> None:
    """And what these emit counts at the timer, in windows behind."""
    job = ps.Job("j", key_groups=3)
    counted = stream_of(job).key_by("key").window(ps.TumblingWindows("10ms")).process("first", FirstNumber())
    reminded = counted.key_by("key").process("remind", Remind(), output=Seen)
    reminded.sink_to("reminded")
    reminded.key_by("key").window(ps.TumblingWindows("10ms")).count("again").sink_to("again")
    running = BatchRunner(job, parallelism=2)
    run(running, Visit("a", 3, 7), Visit("a", 12))
    result = run(running, Visit("a", 31))
    assert seen(result, "reminded") == [("7", 29)]
    assert [ms_of(one.window_start) for one in result.output("again")] == [20]


class Judged(ps.ProcessFunction):
    """Reads a setting as it was at the time of the record."""

    limit = ps.Setting(int, 1)

    def process_record(self, word: Word, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(word.key, f"{word.text} at {self.limit.get()}", ms_of(ctx.event_time))


def test_settings_behind_a_step_hold_from_an_event_time_on() -> None:
    job = ps.Job("j", key_groups=3)
    words(stream_of(job)).key_by("key").process("judge", Judged()).sink_to("look")
    running = BatchRunner(job, parallelism=2)
    command = {"id": "1", "kind": "set", "payload": {"limit": 2}, "target": {"step": "judge"}}
    command["effective_at"] = "1970-01-01T00:00:00.050Z"
    receipts = running.run({"commands": [("c", [msgspec.json.encode(command)])]}).receipts
    assert receipts[-1].status == "APPLIED", receipts[-1].reason
    assert seen(run(running, Visit("a", 49, 1), Visit("a", 50, 2))) == [("1 at 1", 49), ("2 at 2", 50)]


class Remember(ps.ProcessFunction):
    """Tells the word before, unless it is too old."""

    last = ps.ValueState(str, ttl=ps.Ttl(dt.timedelta(milliseconds=20), time="event"))

    def process_record(self, word: Word, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(word.key, f"{self.last.get()} before {word.text}", ms_of(ctx.event_time))
        self.last.set(word.text)


def test_values_expire_by_the_times_of_what_a_step_has_emitted() -> None:
    job = ps.Job("j", key_groups=3)
    words(stream_of(job)).key_by("key").process("remember", Remember()).sink_to("look")
    running = BatchRunner(job)
    assert seen(run(running, Visit("a", 1, 1), Visit("a", 15, 2))) == [
        ("1 before 2", 15),
        ("None before 1", 1),
    ]
    assert seen(run(running, Visit("a", 40, 3))) == [("None before 3", 40)]


def test_a_paused_step_keeps_the_times_of_what_waits() -> None:
    job = ps.Job("j", key_groups=3)
    look(words(stream_of(job)))
    running = BatchRunner(job, parallelism=2)

    def command(kind: str) -> list[tuple[str, list[bytes]]]:
        return [("c", [msgspec.json.encode({"id": kind, "kind": kind, "target": {"step": "look"}})])]

    result = running.run(
        {"commands": command("pause"), "visits": [("p", [Visit("a", 4, 1), Visit("b", 6, 2)])]}
    )
    assert not seen(result)
    assert seen(running.run({"commands": command("resume")})) == [("1", 4), ("2", 6)]


def test_stamped_records_have_their_time_as_well() -> None:
    job = ps.Job("j", key_groups=3)
    stamped = stream_of(job).key_by("key").process("words", ToWord()).stamp_control_version()
    stamped.sink_to("stamped")
    look(stamped)
    found = BatchRunner(job, keyed_sinks={"stamped"})
    result = run(found, Visit("a", 4, 1))
    assert (seen(result), result.sinks["stamped"].keys) == ([("1", 4)], [b"a"])
    assert [one.control_version for one in result.output("stamped")] == [0]


def test_times_travel_only_where_a_step_behind_goes_by_them() -> None:
    """Sinks get the fields of their records alone."""
    job = ps.Job("j", key_groups=3)
    found = stream_of(job).key_by("key").process("words", ToWord())
    found.sink_to("words")
    found.map(lambda word: word, output=Word).sink_to("copies")
    plan = BatchRunner(job).plan
    assert not plan.wants_times(Port("step/words"))
    look(found.map(lambda word: word, output=Word))
    running = BatchRunner(job)
    assert running.plan.wants_times(Port("step/words"))
    result = run(running, Visit("a", 4, 1))
    for sink in ("words", "copies"):
        ((batch, _),) = result.sinks[sink].batches
        assert batch.schema.names == ["key", "text"]


def test_times_that_no_datetime_can_tell_are_the_nearest() -> None:
    """Where there are no watermarks, which they would move; as an integer of another unit may be."""
    job = ps.Job("j", key_groups=3)
    found = words(job.data_stream("visits", schema=Visit, event_time="at"))
    look(found)
    found.key_by("key").process("judge", Judged()).sink_to("judged")
    result = run(BatchRunner(job), Visit("a", 2**60, 1), Visit("a", -(2**60), 2))
    assert not result.dead_letters
    first = ms_of(dt.datetime.min.replace(tzinfo=dt.UTC))
    last = ms_of(dt.datetime.max.replace(tzinfo=dt.UTC))
    assert seen(result) == [("1", last), ("2", first)]
    assert len(seen(result, "judged")) == 2


# -- windows --


def test_reduced_records_count_at_the_end_of_their_window() -> None:
    """And not at the time of the record that was left, which a second window may have done with."""
    job = ps.Job("j", key_groups=3)
    visits = stream_of(job)
    first = visits.key_by("key").window(ps.TumblingWindows("20ms")).reduce("first", lambda one, other: one)
    again = first.key_by("key").window(ps.TumblingWindows("5ms")).count("again")
    again.sink_to("again")
    again.side_output("late").sink_to("late")
    result = run(BatchRunner(job), Visit("a", 1), Visit("a", 18), Visit("a", 50))
    assert [ms_of(one.window_start) for one in result.output("again")] == [15]
    assert not result.output("late")


class AtStart(ps.WindowFunction):
    side_outputs: ClassVar = {"aside": Word}

    def process(self, key: str, found: Sequence[Visit], ctx: ps.WindowContext) -> Iterator[Visit]:
        ctx.side_output("aside", Word(key, "aside"))
        yield Visit(key, ctx.window.start)


def test_a_window_function_may_say_the_time_itself() -> None:
    """With the field of the stream; what it emits aside without one counts at the end."""
    job = ps.Job("j", key_groups=3)
    first = stream_of(job).key_by("key").window(ps.TumblingWindows("20ms")).process("first", AtStart())
    assert first.origin.time == "at"
    look(first.side_output("aside"))
    first.key_by("key").window(ps.TumblingWindows("5ms")).count("again").sink_to("again")
    result = run(BatchRunner(job), Visit("a", 18), Visit("a", 50))
    assert [ms_of(one.window_start) for one in result.output("again")] == [0]
    assert seen(result) == [("aside", 19)]


def test_late_records_keep_their_time() -> None:
    """Also where it travels beside them."""
    job = ps.Job("j", key_groups=3)
    for name, stream in (("field", stream_of(job)), ("beside", words(stream_of(job, name="others")))):
        late = stream.key_by("key").window(ps.TumblingWindows("10ms")).count(name).side_output("late")
        assert (late.origin.time == EVENT_TIME) == (name == "beside")
        again = (
            late.key_by("key").window(ps.TumblingWindows("5ms")).allowed_lateness("1h").count(f"{name}-late")
        )
        again.sink_to(name)
    running = BatchRunner(job)
    visits = [Visit("a", 100)]
    running.run({"visits": [("p", visits)], "others": [("p", visits)]})
    visits = [Visit("a", 7)]
    result = running.run({"visits": [("p", visits)], "others": [("p", visits)]})
    for name in ("field", "beside"):
        assert [ms_of(one.window_start) for one in result.output(name)] == [5]


def test_windows_without_an_end_count_at_what_fired_them() -> None:
    """The record, or the timer by event time; when time ends there is none."""
    job = ps.Job("j", key_groups=3)
    keyed = stream_of(job).key_by("key")
    look(keyed.window(ps.CountWindows(2)).process("two", FirstNumber()), "pairs")
    every = keyed.window(ps.GlobalWindows()).trigger(ps.ContinuousEventTimeTrigger("10ms"))
    look(every.process("all", FirstNumber()), "every")
    running = BatchRunner(job)
    result = run(running, Visit("a", 12, 1), Visit("a", 8, 2), Visit("a", 25, 3))
    assert (seen(result, "pairs"), seen(result, "every")) == ([("1", 8)], [("1", 20)])
    assert seen(run(running, ends=True), "every") == [("1", 30), ("1", None)]


def test_windows_by_the_clock_count_at_their_last_millisecond() -> None:
    job = ps.Job("j", key_groups=3)
    by_clock = stream_of(job).key_by("key").window(ps.TumblingWindows("1s", time="processing"))
    look(by_clock.process("first", FirstNumber()))
    running = BatchRunner(job)
    run(running, Visit("a", 12, 1))
    running.now += dt.timedelta(seconds=1)
    assert seen(run(running)) == [("1", NOW_MS + 999)]


def test_windows_behind_windows_by_ingestion_time() -> None:
    """The first count what came within their second, and the second what these were."""
    job = ps.Job("j", key_groups=3)
    first = stream_of(job, ps.INGESTION_TIME).key_by("key").window(ps.TumblingWindows("1s")).count("first")
    again = first.key_by("key").window(ps.TumblingWindows("1s")).sum("again", "value")
    again.sink_to("again")
    pairs = first.key_by("key").window(ps.CountWindows(1)).trigger(ps.CountTrigger(1)).sum("pairs", "value")
    pairs.key_by("key").window(ps.TumblingWindows("1s")).count("third").sink_to("third")
    running = BatchRunner(job)
    run(running, Visit("a", 0), Visit("a", 0))
    running.now += dt.timedelta(seconds=1)
    result = run(running, Visit("a", 0))
    for sink, value in (("again", 2.0), ("third", 1.0)):
        assert [(ms_of(one.window_start), one.value) for one in result.output(sink)] == [(NOW_MS, value)]


def test_the_clock_fires_global_windows_by_ingestion_time_when_it_is() -> None:
    """What arrives counts at that time, and so does what a timer by the clock has fired."""
    job = ps.Job("j", key_groups=3)
    every = stream_of(job, ps.INGESTION_TIME).key_by("key").window(ps.GlobalWindows())
    look(every.trigger(ps.ContinuousProcessingTimeTrigger("1s")).process("all", FirstNumber()), "every")
    running = BatchRunner(job)
    run(running, Visit("a", 0, 5))
    running.now += dt.timedelta(seconds=2)
    assert set(seen(run(running), "every")) == {("5", NOW_MS + 2000)}


# -- with_event_time --


def test_with_event_time_another_field_counts() -> None:
    """From there on, also behind a map that drops it; watermarks stay those of the stream."""
    job = ps.Job("j", key_groups=3)
    paid = stream_of(job, bound="20ms").map(paid_later, output=Paid).with_event_time("paid_at")
    assert paid.origin.time == "paid_at"
    paid.sink_to("paid")
    paid.key_by("key").window(ps.TumblingWindows("10ms")).count("counts").sink_to("counts")
    look(paid.map(lambda one: Word(one.key, ""), output=Word))
    running = BatchRunner(job, parallelism=2)
    result = run(running, Visit("a", 1, 1), Visit("b", 2, 13), Visit("a", 9, 2), Visit("a", 33, 3))
    (letter,) = result.dead_letters
    assert letter.reason == "the record has no event time: its field 'paid_at' is null"
    assert (msgspec.json.decode(letter.raw)["key"], letter.step) == ("b", "event-time/1")
    assert len(result.output("paid")) == 3
    assert seen(result) == [("", 6), ("", 14), ("", 38)]
    assert [ms_of(one.window_start) for one in result.output("counts")] == [0]
    assert not run(running, ends=True).counts("late")


def paid_later(visit: Visit) -> Paid:
    return Paid(visit.key, None if visit.number == 13 else EPOCH + (visit.at + 5) * MILLISECOND)


def test_with_event_time_the_field_of_a_result_counts() -> None:
    """In place of the end of its window; the second window must allow for that."""
    job = ps.Job("j", key_groups=3)
    counts = stream_of(job).key_by("key").window(ps.TumblingWindows("10ms")).count("counts")
    started = counts.with_event_time("window_start")
    again = started.key_by("key").window(ps.TumblingWindows("5ms")).allowed_lateness("10ms").count("again")
    again.sink_to("again")
    result = run(BatchRunner(job), Visit("a", 1), Visit("a", 18))
    assert [ms_of(one.window_start) for one in result.output("again")] == [0]


def test_with_event_time_works_on_what_arrives() -> None:
    """Records that had no time but that of their arrival have one; watermarks go by the clock."""
    job = ps.Job("j", key_groups=3)
    visits = stream_of(job, ps.INGESTION_TIME).with_event_time("at")
    visits.key_by("key").window(ps.TumblingWindows("10ms")).count("counts").sink_to("counts")
    running = BatchRunner(job)
    run(running, Visit("a", NOW_MS + 3))
    running.now += dt.timedelta(seconds=1)
    assert [ms_of(one.window_start) for one in run(running).output("counts")] == [NOW_MS]


def test_with_event_time_needs_a_field_with_times_in_data_with_watermarks() -> None:
    job = ps.Job("j")
    visits = stream_of(job)
    with pytest.raises(
        SchemaError, match="The stream 'visits': Visit has no field 'when'; its fields are key, at"
    ):
        visits.with_event_time("when")
    with pytest.raises(
        SchemaError, match="The stream 'visits': the field 'key' is string, and cannot be a time"
    ):
        visits.with_event_time("key")
    control = job.control_stream("control", schema=Visit)
    with pytest.raises(JobDefinitionError, match=r"'control' is a control stream.* effective_at="):
        control.with_event_time("at")
    timeless = job.data_stream("timeless", schema=Visit, event_time="at")
    with pytest.raises(JobDefinitionError, match=r"'timeless' has no watermarks .*job.data_stream"):
        timeless.with_event_time("at")


def test_a_stream_with_another_time_that_nobody_reads_is_refused() -> None:
    job = ps.Job("j")
    visits = stream_of(job)
    visits.with_event_time("at")
    visits.sink_to("visits")
    with pytest.raises(
        JobDefinitionError, match=r"Nothing reads .* whose event time is 'at'.*with_event_time returns"
    ):
        job.check()


def test_where_records_have_no_time_nothing_behind_has() -> None:
    """Windows by event time are refused there, as at the stream itself."""
    job = ps.Job("j")
    found = words(job.data_stream("visits", schema=Visit))
    assert found.origin.time is None
    with pytest.raises(JobDefinitionError, match=r"'words' have no event time. Declare it"):
        found.key_by("key").window(ps.TumblingWindows("1s")).count("counts")


def test_control_streams_lose_the_time_that_they_drop() -> None:
    """They take effect at the cut then, as any without one."""
    job = ps.Job("j")
    changes = job.control_stream("changes", schema=Change, effective_at="since")
    assert changes.map(lambda change: Word(change.key, ""), output=Word).origin.time is None
