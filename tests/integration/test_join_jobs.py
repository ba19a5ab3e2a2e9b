"""Joins in Spark, in micro-batches and in real time, with a restart in between, equal the test kit's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.testing import JobHarness


@dataclass
class Event:
    """An event of a key."""

    k: str
    v: int
    at: int


@dataclass
class Both:
    """The counts of both sides in a window."""

    k: str
    left: int
    right: int


def count_both(key: str, window: Any, left: list[Event], right: list[Event]) -> Iterator[Both]:
    """Count the records of both sides."""
    yield Both(key, len(left), len(right))


def joins_job() -> ps.Job:
    """Return a job with a join of each kind, on the same two streams."""
    job = ps.Job("joins")
    marks = ps.Watermarks.bounded("100ms")
    left, right = (
        job.data_stream(name, schema=Event, event_time="at", watermarks=marks).key_by("k")
        for name in ("left", "right")
    )
    names = job.control_stream("names", schema="k STRING, name STRING").key_by("k")
    fields = ["left.k", "left.v AS lv", "right.v AS rv"]
    near = left.interval_join("near", right, lower="-20ms", upper="20ms", how="full", fields=fields)
    near.sink_to("near")
    left.as_of_join("as-of", right, how="left", fields=fields).sink_to("as-of")
    left.window_join("windows", right, ps.TumblingWindows("50ms"), fields=fields).sink_to("windows")
    left.co_group("sessions", right, ps.SessionWindows("5ms"), count_both).sink_to("sessions")
    left.lookup_join("named", names, how="left", fields=["left.v", "name"]).sink_to("named")
    return job


SINKS = ("near", "as-of", "windows", "sessions", "named")
NAMES = [{"k": "a", "name": "one"}, {"k": "b", "name": "two"}]
LEFT = [Event("abc"[n % 3], n, n * 7) for n in range(40)]
RIGHT = [Event("abc"[n % 3], 100 + n, n * 5 + 3) for n in range(50)]
FAR = Event("z", 0, 10_000)
"""Moves the watermark behind all others."""


def values(records: list[Any]) -> Counter[Any]:
    """Return records in a canonical order."""
    return Counter(astuple(one) if isinstance(one, Both) else msgspec.structs.astuple(one) for one in records)


@pytest.mark.parametrize(
    "mode",
    [pytest.param({}, marks=pytest.mark.chaos), {"checkpoint_interval_ms": 1000}],
    ids=["micro-batches", "real time"],
)
def test_joins_continue_after_a_restart(spark: SparkSession, tmp_path: Path, mode: dict[str, int]) -> None:
    """They keep their rows and the progress of event time."""
    expected = JobHarness(joins_job())
    expected.send("names", *NAMES)
    expected.run_batch()
    expected.send("left", *LEFT, FAR)
    expected.send("right", *RIGHT, FAR)
    expected.run_batch()
    given: dict[str, Any] = {"left": [], "right": [], "names": NAMES}
    settings: dict[str, Any] = {"checkpoint": tmp_path / "state", "parallelism": 2, **mode}
    with joins_job().start(given, **settings) as run:
        run.await_batch()
        run.send("left", *LEFT[:20])
        run.send("right", *RIGHT[:25])
        run.await_batch()
        first = run.stop()
    with joins_job().start(given, **settings) as run:
        run.send("left", *LEFT[20:], FAR)
        run.send("right", *RIGHT[25:], FAR)
        run.await_batch()
        last = run.stop()
    for name in SINKS:
        # The output is that of both runs together.
        assert values(last.output(name)) == values(expected.output(name)), name
    assert not first.dead_letters()
