"""Windows that emit or keep values of another type than declared: each becomes a dead letter, and the job
continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from replays import run_and_replay

import penstock as ps
from penstock.errors import StrictModeError
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Reading:
    sensor: str
    at: int
    value: Any = 0


@dataclass
class Told:
    number: int


SCHEMA = "sensor STRING, at BIGINT, value BIGINT"


def made(
    describe: Callable[[ps.WindowedStream], ps.DataStream], *, strict: bool = False, **options: Any
) -> BatchRunner:
    """Return a job with windows of ten milliseconds, fired by the watermark, with a lateness of five."""
    job = ps.Job("job", key_groups=2)
    stream = job.data_stream("in", schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.monotonous())
    windows = stream.key_by("sensor").window(ps.TumblingWindows("10ms")).allowed_lateness("5ms")
    out = describe(windows)
    out.sink_to("out")
    if "aside" in options:
        out.side_output(options["aside"]).sink_to("aside")
    return BatchRunner(job, strict=strict)


def run(job: BatchRunner, *readings: tuple[str, int], ends: bool = False) -> BatchOutcome:
    records = [Reading(sensor, at) for sensor, at in readings]
    return job.run({"in": [("p", records)]} if records else {}, ends=ends)


def letters(result: BatchOutcome) -> list[tuple[str, Any]]:
    """Return stream and subject of each dead letter."""
    found = sorted(result.dead_letters, key=lambda letter: (letter.stream, letter.raw))
    return [(letter.stream, msgspec.json.decode(letter.raw)) for letter in found]


def window(sensor: str, start: int) -> tuple[str, Any]:
    return "@windows", {"key": sensor, "start": start, "end": start + 10}


class Emits(ps.WindowFunction):
    """For sensor one it emits a valid record between invalid ones, to both outputs; for others valid records."""

    side_outputs = {"aside": Told}
    firings = ps.ValueState(int)

    def process(self, key: str, found: Sequence[Any], ctx: ps.WindowContext) -> Iterable[Told]:
        self.firings.set((self.firings.get() or 0) + 1)
        wrong: list[Any] = [Told("one"), None] if key == "a" else []  # type: ignore[arg-type]
        for told in [*wrong, Told(self.firings.get() or 0)]:
            ctx.side_output("aside", told)
            yield told


def test_what_a_window_emits_and_does_not_fit_is_a_dead_letter_of_the_window() -> None:
    """Only invalid records are refused, also on side outputs; valid ones leave, and the key's states keep the
    changes.
    """
    job = made(lambda windows: windows.process("windows", Emits()), aside="aside")
    run(job, ("a", 1), ("b", 2))
    result = run(job, ("b", 11))
    assert letters(result) == [window("a", 0)] * 4
    assert {letter.step for letter in result.dead_letters} == {"windows"}
    assert {letter.reason.split(":")[0] for letter in result.dead_letters} == {
        "the emitted record Told(number='one') does not fit Told(number",
        "the emitted record None does not fit Told(number",
    }
    assert result.output("out") == result.output("aside") == [Told(1), Told(1)]
    assert run(job, ("a", 12), ends=True).output("out") == [Told(2), Told(2)]


def test_a_window_that_emits_nothing_that_fits_emits_nothing() -> None:
    """Its job continues."""

    class Nothing(ps.WindowFunction):
        side_outputs = {"aside": Told}

        def process(self, key: str, found: Sequence[Any], ctx: ps.WindowContext) -> Iterable[Told]:
            ctx.side_output("aside", 5)
            return [Told(None)]  # type: ignore[arg-type]

    job = made(lambda windows: windows.process("windows", Nothing()), aside="aside")
    run(job, ("a", 1))
    result = run(job, ("a", 21))
    assert (letters(result), result.sinks.keys()) == ([window("a", 0)] * 2, {"dead-letters"})
    assert letters(run(job, ends=True)) == [window("a", 20)] * 2


def test_strict_jobs_end_at_what_does_not_fit() -> None:
    """The error names the window and the reason."""
    job = made(lambda windows: windows.process("windows", Emits()), aside="aside", strict=True)
    run(job, ("a", 1), ("b", 2))
    said = (
        'The window {"key":"a","start":0,"end":10} could not be processed at step \'windows\': the emitted record '
        "Told(number='one') does not fit Told(number: int64)"
    )
    with pytest.raises(StrictModeError, match=re.escape(said)):
        run(job, ("b", 11))


class Total(ps.AggregateFunction[Any, int, int]):
    """Adds up the times; subclasses decide what happens to an odd total."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.at)

    def get_result(self, accumulator: int) -> int:
        return accumulator


class WrongResult(Total):
    def get_result(self, accumulator: int) -> int:
        return "odd" if accumulator % 2 else accumulator  # type: ignore[return-value]


def test_a_result_that_does_not_fit_is_a_dead_letter_of_the_window() -> None:
    """The dead letter has the key and the bounds; results of other windows are emitted."""
    job = made(lambda windows: windows.aggregate("windows", WrongResult()))
    run(job, ("a", 1), ("b", 2))
    result = run(job, ("b", 12))
    assert (letters(result), [one.value for one in result.output("out")]) == ([window("a", 0)], [2])


class WrongAccumulator(Total):
    def add(self, value: Any, accumulator: int) -> int:
        return "odd" if value.at % 2 else super().add(value, accumulator)  # type: ignore[return-value]


def test_a_record_that_makes_what_cannot_be_kept_leaves_no_trace() -> None:
    """It becomes a dead letter, and the window is unchanged."""
    job = made(lambda windows: windows.aggregate("windows", WrongAccumulator()))
    result = run(job, ("a", 2), ("a", 3), ("a", 4), ("b", 5))
    records = [{"sensor": sensor, "at": at, "value": 0} for sensor, at in (("a", 3), ("b", 5))]
    assert letters(result) == [("in", record) for record in records]
    for letter in result.dead_letters:
        assert letter.reason.startswith(
            "penstock.errors.UnstorableValueError: the state of the key's windows cannot be stored: field 'result' "
            "(int64) cannot hold a value: "
        )
    (total,) = run(job, ends=True).output("out")
    assert (total.sensor, total.value) == ("a", 6)


class WrongTrigger(ps.Trigger):
    """Fires at each record; keeps text in place of a number at odd times, and when a timer says so."""

    state_type = int

    def on_record(
        self, record: Any, time_ms: int, window: ps.Window, ctx: ps.TriggerContext
    ) -> ps.TriggerResult:
        ctx.state = "odd" if time_ms % 2 else time_ms
        ctx.register_event_timer(time_ms)
        ctx.register_event_timer(time_ms + 1)
        return ps.TriggerResult.FIRE

    def on_event_time(self, time_ms: int, window: ps.Window, ctx: ps.TriggerContext) -> ps.TriggerResult:
        if time_ms % 2:
            ctx.state = "odd"
        return ps.TriggerResult.FIRE_AND_PURGE


class Numbers(ps.WindowFunction):
    """Emits how many firings and records there are; keeps text in place of a number at three records."""

    window_state = int
    firings = ps.ValueState(int)

    def process(self, key: str, found: Sequence[Any], ctx: ps.WindowContext) -> Iterable[Told]:
        ctx.state = len(found)
        self.firings.set((self.firings.get() or 0) + 1)
        if len(found) == 3:
            ctx.state = "three"
        yield Told(10 * (self.firings.get() or 0) + len(found))


def test_a_trigger_that_keeps_what_cannot_be_kept_changes_nothing() -> None:
    """This goes for records and for timers: the output is dropped, and the timer is consumed."""
    job = made(lambda windows: windows.trigger(WrongTrigger()).process("windows", Numbers()))
    result = run(job, ("a", 2), ("a", 3))
    assert letters(result) == [("in", {"sensor": "a", "at": 3, "value": 0})]
    # The error comes at the record, and at the timer at its own time, which purges.
    assert result.output("out") == [Told(11), Told(21)]
    result = run(job, ("b", 4))
    assert (letters(result), result.output("out")) == ([("@windows", {"key": "a"})], [Told(11)])
    assert "field 'trigger'" in result.dead_letters[0].reason


def test_a_function_that_keeps_what_cannot_be_kept_emits_nothing() -> None:
    """The firing is consumed, and its states are unchanged; a late firing with another count emits again."""
    job = made(lambda windows: windows.process("windows", Numbers()))
    run(job, ("a", 1), ("a", 2), ("a", 3), ("b", 4))
    result = run(job, ("b", 10))
    assert (letters(result), result.output("out")) == ([("@windows", {"key": "a"})], [Told(11)])
    assert "field 'function'" in result.dead_letters[0].reason
    result = run(job, ("a", 5))
    assert (letters(result), result.output("out")) == ([], [Told(14)])


def test_what_does_not_fit_is_the_same_on_any_number_of_tasks() -> None:
    """A replay gives the same bytes."""
    job = made(lambda windows: windows.process("windows", Emits()), aside="aside")
    run(job, *((sensor, at) for sensor in "abcd" for at in range(3)))
    assert run_and_replay(job, {"in": [("p", [Reading("a", 30)])]}).dead_letters


def test_what_fits_keeps_its_time_beside_what_does_not() -> None:
    """Later windows see the right times, on the main and the side output."""
    job = ps.Job("job", key_groups=2)
    stream = job.data_stream("in", schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.monotonous())
    out = stream.key_by("sensor").window(ps.TumblingWindows("10ms")).process("windows", Emits())
    for name, part in (("out", out), ("aside", out.side_output("aside"))):
        part.key_by("number").window(ps.TumblingWindows("20ms")).count(f"{name}-counts").sink_to(name)
    at_work = BatchRunner(job)
    run(at_work, ("a", 1), ("b", 2), ("b", 31))
    result = run(at_work, ends=True)
    for name in ("out", "aside"):
        starts = {(one.number, one.window_start.microsecond, one.value) for one in result.output(name)}
        assert starts == {(2, 20_000, 1.0)}
    at_work = BatchRunner(job)
    run(at_work, ("a", 1), ("b", 2))
    result = run(at_work, ("b", 31))
    for name in ("out", "aside"):
        starts = {(one.number, one.window_start.microsecond, one.value) for one in result.output(name)}
        assert starts == {(1, 0, 2.0)}
