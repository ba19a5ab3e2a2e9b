"""Event time of emissions: it stays with the record, and later steps use it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from domains import PassOn, Visit, ms_of
from emission_times import (
    Look,
    Seen,
    ToWord,
    Word,
    count_windows,
    counts_of,
    look,
    run_visits,
    times_of,
    visits_of,
    words_of,
)
from encoded_commands import applied, command_to, commands

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.errors import JobDefinitionError
from penstock.operators.event_times import EVENT_TIME
from penstock.streams.graph import Port
from penstock.testing.batch_runner import NOW, BatchRunner


def to_word(visit: Visit) -> Word:
    if visit.number == 13:
        raise ValueError("thirteen")
    return Word(visit.user, f"{visit.number}")


def twice(word: Word) -> Iterable[Word]:
    return [word, Word(word.key, f"{word.text} again")] if word.text != "2" else []


def test_transforms_keep_the_time() -> None:
    """This holds when other records are dropped, doubled, or dead letters."""
    job = ps.Job("j", key_groups=3)
    mapped = visits_of(job).filter(lambda visit: visit.number != 1).map(to_word)
    look(mapped.flat_map(twice, output=Word).filter(lambda word: word.text != "3"))
    visits = [Visit("a", 100 + n, n) for n in (0, 1, 2, 3, 13, 5)]
    result = run_visits(BatchRunner(job, parallelism=2), *visits)
    assert times_of(result) == [("0", 100), ("0 again", 100), ("3 again", 103), ("5", 105), ("5 again", 105)]
    assert [letter.reason.rsplit("\n", 1)[-1] for letter in result.dead_letters] == ["ValueError: thirteen"]


def test_windows_stand_behind_transforms_that_drop_the_field() -> None:
    """Windows use the time kept with the records."""
    job = ps.Job("j", key_groups=3)
    count_windows(visits_of(job).map(to_word).key_by("key"), "counts")
    result = run_visits(BatchRunner(job), Visit("a", 1), Visit("a", 9), Visit("a", 10))
    assert counts_of(result, "counts") == [(0, 2.0)]


def later(visit: Visit) -> Visit:
    return Visit(visit.user, visit.at + 7)


class Later(ps.ProcessFunction):
    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Visit]:
        yield later(visit)


def test_a_field_of_the_same_name_counts() -> None:
    """A field with the name of the event-time field gives the time of an emission."""
    job = ps.Job("j", key_groups=3)
    visits = visits_of(job)
    step, mapped = visits.key_by("user").process("later", Later()), visits.map(later)
    for name, stream in (("step", step), ("map", mapped)):
        assert stream.origin.time == "at"
        count_windows(stream.key_by("user"), name)
    result = run_visits(BatchRunner(job), Visit("a", 1), Visit("a", 5), Visit("a", 30))
    assert counts_of(result, "step") == counts_of(result, "map") == [(0, 1.0), (10, 1.0)]


@dataclass
class Change:
    key: str
    text: str
    since: int | None


class Busy(ps.ConnectedProcessFunction):
    """Emits from records, timers of both kinds, controls and commands, also to a side output."""

    side_outputs: ClassVar = {"aside": Word, "copies": Visit}
    limit = ps.Setting(int, 0)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Word]:
        at = EPOCH + (visit.at + 5) * MILLISECOND - dt.timedelta(microseconds=300)
        ctx.timers.register(at, "event", domain="event")
        ctx.timers.register(NOW, "clock")
        ctx.side_output("aside", Word(visit.user, f"aside {visit.number}"))
        ctx.side_output("copies", visit)
        yield Word(visit.user, f"{visit.number}")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Word]:
        yield Word(ctx.key, f"timer {timer.name}")

    def process_control(self, control: Word, ctx: ps.Context) -> Iterator[Word]:
        yield Word("c", f"control {control.text}")

    @ps.on_command("tell", scope="step")
    def tell(self, text: str, ctx: ps.CommandContext) -> Iterator[Word]:
        yield Word("t", f"command {text}")


def busy_job() -> tuple[ps.Job, ps.ProcessedStream]:
    job = ps.Job("j", key_groups=3)
    changes = job.control_stream("changes", schema=Change, effective_at="since")
    data = visits_of(job).key_by("user")
    return job, data.connect(changes.key_by("key"), changes.broadcast()).process("busy", Busy())


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_step_emits_counts_at_what_it_came_of(partitions: int) -> None:
    """That is the time of the record or timer; for controls and commands their effective time, if any."""
    job, busy = busy_job()
    look(busy)
    look(busy.side_output("aside"), "aside")
    running = BatchRunner(job, parallelism=partitions)
    result = running.run(
        {
            **commands(
                command_to("busy", "tell", "now"),
                command_to("busy", "tell", "then", effective_at="1970-01-01T00:00:00.017Z"),
            ),
            "changes": [("p", [Change("a", "old", 3), Change("a", "new", None)])],
            "visits": [("p", [Visit("a", 10, 1), Visit("b", 12, 2)])],
        }
    )
    assert not result.dead_letters
    assert times_of(result) == [
        ("1", 10),
        ("2", 12),
        ("command now", None),
        ("command then", 17),
        ("control new", None),
        ("control new", None),
        ("control old", 3),
        ("control old", 3),
    ]
    assert times_of(result, "aside") == [("aside 1", 10), ("aside 2", 12)]
    # The timer is due when the watermark has reached its time minus one millisecond.
    assert times_of(run_visits(running, Visit("b", 16, 3))) == [
        ("3", 16),
        ("timer clock", None),
        ("timer clock", None),
        ("timer event", 15),
    ]


def test_side_outputs_have_times_of_their_own() -> None:
    """One with the input's time field uses it, whatever the main output has."""
    _, busy = busy_job()
    assert busy.origin.time == busy.side_output("aside").origin.time == EVENT_TIME
    assert busy.side_output("copies").origin.time == "at"


class First(ps.WindowFunction):
    def process(self, key: str, found: Sequence[Word], ctx: ps.WindowContext) -> Iterator[Word]:
        yield found[0]


def test_what_has_no_time_is_a_dead_letter_at_windows_by_event_time() -> None:
    """Windows without event time take it at the time of the micro-batch."""
    job, busy = busy_job()
    count_windows(busy.key_by("key"), "counts")
    busy.key_by("key").window(ps.CountWindows(1)).process("each", First()).sink_to("each")
    running = BatchRunner(job)
    run_visits(running, Visit("a", 10, 1))
    result = run_visits(running, Visit("a", 12, 2))
    (letter,) = result.dead_letters
    assert (letter.step, "emitted for a processing-time timer" in letter.reason) == ("counts", True)
    assert "with_event_time" in letter.reason
    assert sorted(one.text for one in result.output("each")) == ["2", "timer clock"]
    assert [one.value for one in run_visits(running, ends=True).output("counts")] == [4.0]


def test_rolling_aggregates_keep_the_time() -> None:
    """Each result has the time of the record that caused it."""
    job = ps.Job("j", key_groups=3)
    sums = visits_of(job).key_by("user").sum("sums", "number")
    sums.key_by("user").window(ps.TumblingWindows("10ms")).max("highest", "value").sink_to("highest")
    result = run_visits(BatchRunner(job), Visit("a", 1, 3), Visit("a", 9, 4), Visit("a", 10, 5))
    assert counts_of(result, "highest") == [(0, 7.0)]


def test_what_records_are_reduced_to_counts_at_the_time_of_the_record() -> None:
    """This holds also if the result is an older record with another time in its field."""
    job = ps.Job("j", key_groups=3)
    first = visits_of(job).key_by("user").reduce("first", lambda one, other: one)
    count_windows(first.key_by("user"), "counts")
    result = run_visits(BatchRunner(job), Visit("a", 1, 3), Visit("a", 12, 4), Visit("a", 20, 5))
    assert counts_of(result, "counts") == [(0, 1), (10, 1)]


class Vectorised(ps.ProcessFunction):
    """Emits even numbers in reverse order, and all to a side output."""

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
        batch = pa.RecordBatch.from_arrays([records.column("user"), pa.array(texts)], ["key", "text"])
        rows = np.flatnonzero(numbers % 2 == 0)[::-1].copy()
        ctx.side_output("all", batch, np.arange(len(numbers)))
        return batch.take(pa.array(rows)), rows


def test_columns_keep_the_times_of_their_rows() -> None:
    """This includes batches that are halved to find the culprit."""
    job = ps.Job("j", key_groups=3)
    found = visits_of(job).key_by("user").process("columns", Vectorised())
    look(found)
    look(found.side_output("all"), "all")
    result = run_visits(BatchRunner(job), *(Visit("ab"[n % 2], 10 * n, n) for n in (1, 2, 3, 13, 4)))
    assert len(result.dead_letters) == 1
    assert times_of(result) == [("2", 20), ("4", 40)]
    assert times_of(result, "all") == [("1", 10), ("2", 20), ("3", 30), ("4", 40)]


def test_steps_without_a_key_keep_the_time() -> None:
    """Steps after them keep it too, keyed or not."""
    job = ps.Job("j", key_groups=3)
    found = visits_of(job).process("words", ToWord())
    look(found)
    found.process("parts", Look()).sink_to("parts")
    words_of_keys = found.key_by("key").process("same", PassOn(), output=Word)
    words_of_keys.process("parts of keys", Look()).sink_to("parts-of-keys")
    result = run_visits(BatchRunner(job, parallelism=2), Visit("a", 1, 1), Visit("b", 5, 2))
    for sink in ("look", "parts", "parts-of-keys"):
        assert times_of(result, sink) == [("1", 1), ("2", 5)]


class Judged(ps.ProcessFunction):
    """Reads a setting as of the record's time."""

    limit = ps.Setting(int, 1)

    def process_record(self, word: Word, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(word.key, f"{word.text} at {self.limit.get()}", ms_of(ctx.event_time))


def test_settings_behind_a_step_hold_from_an_event_time_on() -> None:
    """Each word is judged by the setting of its own time."""
    job = ps.Job("j", key_groups=3)
    words_of(visits_of(job)).key_by("key").process("judge", Judged()).sink_to("look")
    running = BatchRunner(job, parallelism=2)
    effective_at = "1970-01-01T00:00:00.050Z"
    applied(running.run(commands(command_to("judge", "set", {"limit": 2}, effective_at=effective_at))))
    result = run_visits(running, Visit("a", 49, 1), Visit("a", 50, 2))
    assert times_of(result) == [("1 at 1", 49), ("2 at 2", 50)]


class Remember(ps.ProcessFunction):
    """Emits the previous word, unless it has expired."""

    last = ps.ValueState(str, ttl=ps.Ttl(dt.timedelta(milliseconds=20), time="event"))

    def process_record(self, word: Word, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(word.key, f"{self.last.get()} before {word.text}", ms_of(ctx.event_time))
        self.last.set(word.text)


def test_values_expire_by_the_times_of_what_a_step_has_emitted() -> None:
    """No field of theirs has the time."""
    job = ps.Job("j", key_groups=3)
    words_of(visits_of(job)).key_by("key").process("remember", Remember()).sink_to("look")
    running = BatchRunner(job)
    result = run_visits(running, Visit("a", 1, 1), Visit("a", 15, 2))
    assert times_of(result) == [("1 before 2", 15), ("None before 1", 1)]
    assert times_of(run_visits(running, Visit("a", 40, 3))) == [("None before 3", 40)]


def test_a_paused_step_keeps_the_times_of_what_waits() -> None:
    """They are stored with the held records."""
    job = ps.Job("j", key_groups=3)
    look(words_of(visits_of(job)))
    running = BatchRunner(job, parallelism=2)
    visits = [Visit("a", 4, 1), Visit("b", 6, 2)]
    result = running.run({**commands(command_to("look", "pause")), "visits": [("p", visits)]})
    assert not times_of(result)
    assert times_of(running.run(commands(command_to("look", "resume")))) == [("1", 4), ("2", 6)]


def test_stamped_records_have_their_time_as_well() -> None:
    """They have their keys, too."""
    job = ps.Job("j", key_groups=3)
    stamped = words_of(visits_of(job)).stamp_control_version()
    stamped.sink_to("stamped")
    look(stamped)
    result = run_visits(BatchRunner(job, keyed_sinks={"stamped"}), Visit("a", 4, 1))
    assert (times_of(result), result.sinks["stamped"].keys) == ([("1", 4)], [b"a"])
    assert [one.control_version for one in result.output("stamped")] == [0]


def test_times_travel_only_where_a_step_behind_goes_by_them() -> None:
    """Sinks get only the fields of their records."""
    job = ps.Job("j", key_groups=3)
    words = words_of(visits_of(job))
    words.sink_to("words")
    words.map(lambda word: word, output=Word).sink_to("copies")
    assert not BatchRunner(job).plan.wants_times(Port("step/words"))
    look(words.map(lambda word: word, output=Word))
    running = BatchRunner(job)
    assert running.plan.wants_times(Port("step/words"))
    result = run_visits(running, Visit("a", 4, 1))
    for sink in ("words", "copies"):
        ((batch, _),) = result.sinks[sink].batches
        assert batch.schema.names == ["key", "text"]


def test_times_that_no_datetime_can_tell_are_the_nearest() -> None:
    """This applies where no watermark depends on them; integers of another unit may be such times."""
    job = ps.Job("j", key_groups=3)
    words = words_of(job.data_stream("visits", schema=Visit, event_time="at"))
    look(words)
    words.key_by("key").process("judge", Judged()).sink_to("judged")
    result = run_visits(BatchRunner(job), Visit("a", 2**60, 1), Visit("a", -(2**60), 2))
    assert not result.dead_letters
    first = ms_of(dt.datetime.min.replace(tzinfo=dt.UTC))
    last = ms_of(dt.datetime.max.replace(tzinfo=dt.UTC))
    assert times_of(result) == [("1", last), ("2", first)]
    assert len(times_of(result, "judged")) == 2


def test_where_records_have_no_time_nothing_behind_has() -> None:
    """Event-time windows are refused there, as on the stream itself."""
    job = ps.Job("j")
    words = words_of(job.data_stream("visits", schema=Visit))
    assert words.origin.time is None
    with pytest.raises(JobDefinitionError, match=r"'words' have no event time. Declare it"):
        words.key_by("key").window(ps.TumblingWindows("1s")).count("counts")


def test_control_streams_lose_the_time_that_they_drop() -> None:
    """They then take effect at the cut, as without a time."""
    job = ps.Job("j")
    changes = job.control_stream("changes", schema=Change, effective_at="since")
    assert changes.map(lambda change: Word(change.key, ""), output=Word).origin.time is None
