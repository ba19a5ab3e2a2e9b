"""The end of a bounded run: windows that are open are done, by whatever time they go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import penstock as ps
from penstock.runtime.plan import JobPlan, wants_starts
from penstock.testing.batch_runner import NOW, BatchRunner


@dataclass
class Hit:
    key: str
    count: int


class Sum(ps.WindowFunction):
    def process(self, key: str, records: Sequence[Hit], ctx: ps.WindowContext) -> Iterator[Hit]:
        yield Hit(key, sum(hit.count for hit in records))


def summing(
    windows: ps.WindowAssigner, trigger: ps.Trigger | None = None, *, again: bool = False
) -> BatchRunner:
    """A job that sums up, and with `again` once more what came of that; its records have no event time."""
    job = ps.Job("job", key_groups=4)
    stream: ps.DataStream = job.data_stream("hits", schema=Hit)
    for step in ("first", "second") if again else ("first",):
        windowed = stream.key_by("key").window(windows)
        stream = (windowed if trigger is None else windowed.trigger(trigger)).process(step, Sum())
    stream.sink_to("sums")
    return BatchRunner(job, parallelism=2)


def sums(job: BatchRunner, *hits: Hit, ends: bool = False) -> list[tuple[str, int]]:
    result = job.run({"hits": [("p", hits)]} if hits else {}, ends=ends)
    assert not result.dead_letters
    return sorted((hit.key, hit.count) for hit in result.output("sums"))


BY_CLOCK = [
    pytest.param(ps.TumblingWindows("2s", time="processing"), 1, id="tumbling"),
    pytest.param(ps.SlidingWindows("4s", "1s", time="processing"), 4, id="sliding"),
    pytest.param(ps.SessionWindows("2s", time="processing"), 1, id="sessions"),
]


@pytest.mark.parametrize(("windows", "each"), BY_CLOCK)
def test_windows_by_the_clock_fire_at_the_end(windows: Any, each: int) -> None:
    """Each once, and time advances in a later run."""
    job = summing(windows)
    assert sums(job, Hit("a", 1), Hit("b", 2), Hit("a", 4)) == []
    assert sums(job, ends=True) == [("a", 5)] * each + [("b", 2)] * each
    assert sums(job, ends=True) == []
    assert sums(job, Hit("a", 7)) == []
    job.now += dt.timedelta(seconds=5)
    assert sums(job) == [("a", 7)] * each


def test_windows_behind_others_fire_at_the_end_as_well() -> None:
    """With what those before have emitted at the end."""
    job = summing(ps.TumblingWindows("2s", time="processing"), again=True)
    assert sums(job, Hit("a", 1)) == []
    job.now += dt.timedelta(seconds=2, milliseconds=1)
    assert sums(job, Hit("a", 2)) == []
    assert sums(job, ends=True) == [("a", 3)]


def test_the_global_window_fires_at_the_end_where_there_is_no_event_time() -> None:
    """With a trigger by event time. It stays, so that a later run continues with it."""
    job = summing(ps.GlobalWindows(), ps.EventTimeTrigger())
    assert sums(job, Hit("a", 1), Hit("b", 2)) == []
    assert sums(job, ends=True) == [("a", 1), ("b", 2)]
    assert sums(job, Hit("a", 4)) == []
    assert sums(job, ends=True) == [("a", 5)]


def test_a_continuous_trigger_by_the_clock_fires_up_to_the_end_of_its_window() -> None:
    windows = ps.TumblingWindows("4s", time="processing")
    job = summing(windows, ps.ContinuousProcessingTimeTrigger("1s"))
    assert job.now == NOW
    assert sums(job, Hit("a", 1)) == []
    assert sums(job, ends=True) == [("a", 1)] * 4


@pytest.mark.parametrize(
    ("windows", "trigger", "awaits"),
    [
        (ps.TumblingWindows("2s", time="processing"), None, True),
        (ps.GlobalWindows(), ps.EventTimeTrigger(), True),
        (ps.GlobalWindows(), ps.PurgingTrigger(ps.EventTimeTrigger()), True),
        (ps.CountWindows(2), None, False),
    ],
)
def test_only_windows_that_wait_for_time_make_a_micro_batch_for_the_end(
    windows: Any, trigger: Any, awaits: bool
) -> None:
    plan: JobPlan = summing(windows, trigger).plan
    assert plan.awaits_end == wants_starts(plan.graph) == awaits
