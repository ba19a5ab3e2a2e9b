"""Event times beyond the range of datetime, as integers allow: a dead letter each, and the job continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from replays import run_and_replay

import penstock as ps
from penstock.base.instants import FIRST_MS, LAST_MS
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

BEYOND = [2**63 - 1, 2**62, LAST_MS + 1, FIRST_MS - 1, -(2**62), -(2**63)]


@dataclass
class Reading:
    sensor: str
    at: int | None
    told: int | None = None


def run(job: BatchRunner, *readings: Reading, ends: bool = False) -> BatchOutcome:
    return job.run({"in": [("p", list(readings))]} if readings else {}, ends=ends)


def described(windows: Any, watermarks: ps.Watermarks | None = None) -> tuple[ps.Job, ps.DataStream]:
    job = ps.Job("job", key_groups=2)
    strategy = watermarks or ps.Watermarks.monotonous()
    stream = job.data_stream("in", schema=Reading, event_time="at", watermarks=strategy)
    counts = stream.key_by("sensor").window(windows)
    counts.count("columns").sink_to("columns")
    counts.aggregate("records", Number()).sink_to("records")
    return job, stream


class Number(ps.AggregateFunction[Reading, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, reading: Reading, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize("at", BEYOND)
@pytest.mark.parametrize("max_ahead", [False, True])
def test_a_time_beyond_all_dates_is_a_dead_letter(at: int, max_ahead: bool) -> None:
    """The watermark does not move, so no other record becomes late; the reason says what to send instead."""
    strategy = ps.Watermarks.monotonous()
    job, _ = described(ps.TumblingWindows("10ms"), strategy.with_max_ahead("1h") if max_ahead else strategy)
    at_work = BatchRunner(job)
    first = run(at_work, Reading("a", 1), Reading("a", at), Reading("a", 2))
    (letter,) = first.dead_letters
    assert letter.reason == (
        f"the event time {at} lies beyond the years 1 to 9999; give a timestamp, or milliseconds since 1970"
    )
    assert msgspec.json.decode(letter.raw)["at"] == at
    result = run(at_work, Reading("a", 3), Reading("a", 10), ends=True)
    assert not result.dead_letters
    for sink in ("columns", "records"):
        assert [one.value for one in result.output(sink)] == [3.0, 1.0]


def test_a_field_that_counts_from_there_on_may_hold_such_a_time() -> None:
    """The record is then a dead letter at the windows; other records are processed."""
    job, stream = described(ps.TumblingWindows("10ms"))
    told = stream.with_event_time("told").key_by("sensor").window(ps.TumblingWindows("10ms"))
    told.count("told").sink_to("told")
    at_work = BatchRunner(job)
    result = run(at_work, Reading("a", 1, 2**62), Reading("a", 1, None), Reading("a", 1, 5))
    assert sorted(letter.reason[:24] for letter in result.dead_letters) == [
        "the event time 461168601",
        "the record has no event ",
    ]
    assert [one.value for one in run(at_work, ends=True).output("told")] == [1.0]


def test_a_window_with_a_bound_beyond_all_dates_emits_dead_letters() -> None:
    """The records' own times may be valid; both paths are alike, and other windows emit."""
    job, _ = described(ps.TumblingWindows("1d"))
    at_work = BatchRunner(job)
    first = run(at_work, Reading("a", LAST_MS), Reading("b", 1))
    for sink in ("columns", "records"):
        assert [one.sensor for one in first.output(sink)] == ["b"]
    result = run_and_replay(at_work, {}, ends=True)
    letters = {letter.step: letter for letter in result.dead_letters}
    assert letters.keys() == {"columns", "records"}
    for letter in letters.values():
        assert letter.raw == b'{"key":"a","start":%d,"end":%d}' % (LAST_MS - 86_399_999, LAST_MS + 1)
        assert (
            "field 'window_end' cannot hold a value: 253402300800000 lies beyond the years" in letter.reason
        )
    assert letters["columns"].reason == letters["records"].reason
    assert result.sinks.keys() == {"dead-letters"}


class Far(ps.WindowAssigner):
    """Assigns a window that begins before all dates."""

    def assign(self, reading: Reading, time_ms: int) -> list[ps.Window]:
        return [ps.Window(-(2**62), time_ms + 10)]


def test_an_assigner_may_give_windows_beyond_all_dates() -> None:
    """Results with bounds are dead letters, and others leave."""
    job = ps.Job("job")
    stream = job.data_stream("in", schema=Reading, event_time="at", watermarks=ps.Watermarks.monotonous())
    windows = stream.key_by("sensor").window(Far())
    windows.aggregate("bounds", Number()).sink_to("bounds")
    windows.reduce("reduced", lambda one, other: other).sink_to("reduced")
    at_work = BatchRunner(job)
    run(at_work, Reading("a", 1))
    result = run(at_work, ends=True)
    assert [letter.step for letter in result.dead_letters] == ["bounds"]
    assert result.output("reduced") == [Reading("a", 1)]
