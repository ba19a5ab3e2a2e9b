"""Chained windows: results have the last time of their window, and the second windows take all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from domains import Visit
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay
from rescaling import MOVES, again_after
from window_driver import made_assigner, made_trigger, ms
from window_reference import windowed
from window_streams import ASSIGNERS, EVENT_TIME, specs

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Count:
    user: str
    value: float


def top(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda count: (count.value, count.user))


def job_of(lateness: str = "0s", again: str = "0s") -> ps.Job:
    """Return a job that finds the user with the most visits in each ten milliseconds."""
    job = ps.Job("j", key_groups=5)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s"))
    windowed = visits.key_by("user").window(ps.TumblingWindows("10ms")).allowed_lateness(lateness)
    counts = windowed.count("counts")
    counts.sink_to("counts")
    tops = counts.window_all(ps.TumblingWindows("10ms")).allowed_lateness(again).reduce("top", top)
    tops.sink_to("top")
    tops.side_output("late").sink_to("late")
    return job


def run(job: BatchRunner, *visits: Visit, ends: bool = False) -> BatchOutcome:
    result = job.run({"visits": [("p", visits)]} if visits else {}, ends=ends)
    assert not result.dead_letters
    return result


def told(result: BatchOutcome, sink: str = "top") -> list[tuple[str, int, float]]:
    """Return user, start and number of visits of each result."""
    return [(one.user, (one.window_start - EPOCH) // MILLISECOND, one.value) for one in result.output(sink)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_second_windows_fire_with_the_first(partitions: int) -> None:
    """They fire in the same micro-batch, once the watermark has passed both; nothing is late."""
    job = BatchRunner(job_of(), parallelism=partitions)
    first = run(
        job, Visit("a", 1), Visit("b", 2), Visit("a", 9), Visit("b", 12), Visit("c", 5), Visit("a", 19)
    )
    assert told(first) == [("a", 0, 2.0)]
    assert told(run(job, Visit("b", 18), Visit("b", 25), Visit("c", 40))) == [("b", 10, 2.0), ("b", 20, 1.0)]
    last = run(job, ends=True)
    assert told(last) == [("c", 40, 1.0)]
    assert not last.counts("late")


def test_what_late_records_fire_counts_at_the_same_time() -> None:
    """By then the second window has been cleaned up, unless it has a lateness of its own."""
    for again, expected in (("0s", ([], [("a", 0, 2.0)])), ("30ms", ([("a", 0, 2.0)], []))):
        job = BatchRunner(job_of("30ms", again))
        assert told(run(job, Visit("a", 1), Visit("b", 12))) == [("a", 0, 1.0)]
        late = run(job, Visit("a", 2))
        assert (told(late), told(late, "late")) == expected
        assert late.counts("late").get("top", 0) == len(expected[1])


def test_windows_that_are_larger_or_smaller_than_the_first() -> None:
    """A result's time is the last millisecond of its window, for later windows as for any step."""
    job = ps.Job("j", key_groups=2)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s"))
    counts = visits.key_by("user").window(ps.TumblingWindows("10ms")).count("counts")
    for name, assigner in (
        ("larger", ps.TumblingWindows("20ms")),
        ("smaller", ps.TumblingWindows("4ms")),
        ("sliding", ps.SlidingWindows("20ms", "10ms")),
        ("session", ps.SessionWindows("5ms")),
    ):
        counts.key_by("user").window(assigner).sum(name, "value").sink_to(name)
    found = BatchRunner(job)
    first, last = run(found, *(Visit("a", at) for at in (0, 1, 12))), run(found, ends=True)
    assert not first.counts("late") | last.counts("late")
    assert told(last, "larger") == [("a", 0, 3.0)]
    assert (told(first, "smaller"), told(last, "smaller")) == ([("a", 8, 2.0)], [("a", 16, 1.0)])
    assert told(first, "sliding") == [("a", -10, 2.0)]
    assert told(last, "sliding") == [("a", 0, 3.0), ("a", 10, 1.0)]
    assert told(last, "session") == [("a", 9, 2.0), ("a", 19, 1.0)]


@dataclass
class Record:
    """A record of either level; at the second it carries a pane's sum."""

    key: str
    ts: int
    v: float
    gap: int = 3


@dataclass
class Sum:
    """The result of a pane of the first windows, without a time."""

    key: str
    v: float
    gap: int


@dataclass
class Shown:
    key: str
    start: int
    end: int
    values: list[float]


class SumUp(ps.WindowFunction):
    def process(self, key: str, records: Sequence[Record], ctx: ps.WindowContext) -> Iterator[Sum]:
        yield Sum(key, sum(one.v for one in records), 7)


class Show(ps.WindowFunction):
    def process(self, key: str, records: Sequence[Sum], ctx: ps.WindowContext) -> Iterator[Shown]:
        yield Shown(key, ctx.window.start, ctx.window.end, [one.v for one in records])


def with_windows(stream: ps.DataStream, spec: dict[str, Any]) -> ps.WindowedStream:
    assigner: Any = made_assigner(spec["assigner"])
    if spec["assigner"]["type"] == "dynamic_session":
        assigner = ps.SessionWindows(lambda record: ms(record.gap))
    windowed = stream.key_by("key").window(assigner)
    trigger = made_trigger(spec["trigger"])
    if trigger is not None:
        windowed = windowed.trigger(trigger)
    return windowed.allowed_lateness(ms(spec["lateness"]))


def two_levels(first: dict[str, Any], second: dict[str, Any]) -> ps.Job:
    job = ps.Job("j", key_groups=5)
    records = job.data_stream(
        "records", schema=Record, event_time="ts", watermarks=ps.Watermarks.bounded("0s")
    )
    sums = with_windows(records, first).process("sums", SumUp())
    sums.sink_to("sums")
    shown = with_windows(sums, second).process("shown", Show())
    shown.sink_to("shown")
    shown.side_output("late").sink_to("late")
    return job


def modelled(
    first: dict[str, Any], second: dict[str, Any], batches: Sequence[Sequence[Record]]
) -> list[list[dict[str, Any]]]:
    """The expected result of each micro-batch: the model of windows applied twice."""
    elements: list[dict[str, Any]] = []
    batch_of: list[int] = []
    watermarks: list[int] = []
    for number, records in enumerate(batches):
        elements += [{"key": r.key, "ts": r.ts, "v": r.v, "gap": r.gap} for r in records]
        newest = max([*watermarks[-1:], *(r.ts - 1 for r in records)])
        watermarks.append(newest)
        elements.append({"wm": newest})
        batch_of += [number] * (len(records) + 1)
    again: list[dict[str, Any]] = []
    batch_of_again: list[int] = []
    panes = [pane for pane in windowed(first, elements) if "late" not in pane]
    for number, watermark in enumerate(watermarks):
        mine = [pane for pane in panes if batch_of[pane["at"]] == number]
        for pane in mine:
            # Without an end, the result has the time of the record that fired it.
            at = elements[pane["at"]]["ts"] if pane["end"] is None else pane["end"] - 1
            again.append({"key": pane["key"], "ts": at, "v": sum(pane["values"]), "gap": 7})
        again.append({"wm": watermark})
        batch_of_again += [number] * (len(mine) + 1)
    found: list[list[dict[str, Any]]] = [[] for _ in batches]
    for pane in windowed(second, again):
        found[batch_of_again[pane["at"]]].append(pane)
    return found


def comparable(second: dict[str, Any], panes: Sequence[Any]) -> dict[str, list[Any]]:
    """Return panes and late records by key, in order. Sessions are sorted, since their order differs from the
    model's.
    """
    merges = "session" in second["assigner"]["type"]
    found: dict[str, list[Any]] = {}
    for key, bounds, values in panes:
        found.setdefault(key, []).append((bounds, sorted(values) if merges else values))
    return found


KINDS = {*EVENT_TIME, "count_tumbling", "count_sliding"}


def are_told(spec: dict[str, Any]) -> bool:
    """Return whether windows emit in a defined order: by event time, and without an evictor."""
    trigger = spec["trigger"].get("of", spec["trigger"])["type"]
    return (
        spec["assigner"]["type"] in KINDS
        and (trigger in ("default", "count") or spec["assigner"]["type"] == trigger == "tumbling")
        and (spec["evictor"]["type"] == "none")
    )


SPECS = specs().filter(are_told).map(lambda spec: {**spec, "late_output": True})
RECORDS = st.builds(
    Record,
    st.sampled_from(["a", "b", "c"]),
    st.integers(-12, 8),
    st.integers(-3, 3).map(float),
    st.integers(1, 9),
)
BATCHES = st.lists(st.tuples(st.integers(0, 9), st.lists(RECORDS, max_size=6)), min_size=1, max_size=7)


def laid_out(drawn: Sequence[tuple[int, Sequence[Record]]]) -> list[list[Record]]:
    """Return micro-batches with records around an advancing time; the last one is later than all open windows."""
    made, now = [], 0
    for step, records in drawn:
        now += step
        made.append([Record(r.key, now + r.ts, r.v, r.gap) for r in records])
    made[0].append(Record("z", 0, 0.0))
    return [*made, [Record("z", now + 200, 0.0)]]


@examples(12)
@given(SPECS, SPECS, BATCHES, st.integers(1, 3))
def test_two_levels_emit_what_the_model_applied_twice_emits(
    first: dict[str, Any], second: dict[str, Any], drawn: Any, partitions: int
) -> None:
    """The micro-batches are the same too, and so is a replay."""
    batches = laid_out(drawn)
    job = BatchRunner(two_levels(first, second), parallelism=partitions)
    for number, (records, expected) in enumerate(zip(batches, modelled(first, second, batches), strict=True)):
        inputs = {"records": [("p", records)]}
        result = run_and_replay(job, inputs, seed=number)
        assert not result.dead_letters
        panes = [pane for pane in expected if "late" not in pane]
        shown = [(one.key, (one.start, one.end), one.values) for one in result.output("shown")]
        assert comparable(second, shown) == comparable(
            second, [(pane["key"], bounds_of(pane), pane["values"]) for pane in panes]
        )
        late = [pane["late"] for pane in expected if "late" in pane]
        assert comparable(second, [(one.key, (), [one.v]) for one in result.output("late")]) == comparable(
            second, [(one["key"], (), [one["v"]]) for one in late]
        )


def bounds_of(pane: dict[str, Any]) -> tuple[int, int]:
    return (-(2**63), 2**63 - 1) if pane["end"] is None else (pane["start"], pane["end"])


@examples(12)
@given(SPECS, SPECS, BATCHES, st.lists(st.tuples(MOVES, st.integers(1, 4)), min_size=8, max_size=8))
def test_two_levels_are_the_same_restarted_and_rescaled(
    first: dict[str, Any], second: dict[str, Any], drawn: Any, moves: Any
) -> None:
    """Every key has the same results, in the same order and micro-batches."""
    described = two_levels(first, second)
    straight, moved = BatchRunner(described), BatchRunner(described, parallelism=2)
    for records, (what, tasks) in zip(laid_out(drawn), moves, strict=False):
        moved = again_after(moved, what, tasks)
        expected, found = (job.run({"records": [("p", records)]}) for job in (straight, moved))
        for sink in ("sums", "shown", "late"):
            assert by_key(found, sink) == by_key(expected, sink)
        for kind in ("in_windows", "late", "without_window", "records"):
            assert found.counts(kind).keys() == expected.counts(kind).keys()
        assert found.counts("late") == expected.counts("late")
        for node in moved.plan.graph.steps():
            watermarks, expected_watermarks = found.watermarks(node.step, expected)
            assert watermarks == expected_watermarks


def by_key(result: BatchOutcome, sink: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for one in result.output(sink):
        found.setdefault(one.key, []).append(one)
    return found


@examples(20)
@given(st.sampled_from(sorted(EVENT_TIME)).flatmap(lambda kind: ASSIGNERS[kind]), BATCHES)
def test_what_fires_by_the_watermark_is_never_late(assigner: dict[str, Any], drawn: Any) -> None:
    """This holds for windows of any size after windows without lateness."""
    first = {"assigner": assigner, "trigger": {"type": "default"}, "lateness": 0}
    second = {**first, "assigner": {"type": "tumbling", "size": 1}}
    job = BatchRunner(two_levels(first, second), parallelism=2)
    sums = shown = 0
    for records in laid_out(drawn):
        result = job.run({"records": [("p", records)]})
        assert "shown" not in result.counts("late")
        sums += len(result.output("sums"))
        shown += sum(len(one.values) for one in result.output("shown"))
    assert shown == sums


def test_windows_behind_a_union_of_windows() -> None:
    """The second windows also take what a step makes of records; all results keep their emission times."""

    class Passed(ps.ProcessFunction):
        """Emits each record as a count of one."""

        def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Count]:
            yield Count(visit.user, 1.0)

    def short(count: Any) -> Count:
        return Count(count.user, count.value)

    job = ps.Job("j", key_groups=5)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s"))
    by_user = visits.key_by("user")
    tens = by_user.window(ps.TumblingWindows("10ms")).count("tens").map(short)
    fives = by_user.window(ps.TumblingWindows("5ms")).count("fives").map(short)
    passed = by_user.process("passed", Passed())
    together = passed.union(tens, fives).key_by("user").window(ps.TumblingWindows("20ms")).sum("all", "value")
    together.sink_to("all")
    together.side_output("late").sink_to("late")
    found = BatchRunner(job)
    first = run(found, *(Visit("a", at) for at in (0, 4, 12, 21)))
    last = run(found, Visit("b", 33), ends=True)
    assert told(first, "all") == [("a", 0, 9.0)]
    assert told(last, "all") == [("a", 20, 3.0), ("b", 20, 3.0)]
    assert not first.output("late") + last.output("late")
