"""The fast path of windows: as columns they emit and store the same bytes as record by record."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.engine import slot_run
from penstock.engine.window_columns import WindowColumnsRun
from penstock.errors import JobDefinitionError
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Reading:
    sensor: str
    at: int
    value: float | None = None
    number: int = 0


ASSIGNERS = {
    "tumbling": lambda time: ps.TumblingWindows("10ms", "3ms", time),
    "sliding": lambda time: ps.SlidingWindows("10ms", "4ms", "1ms", time),
    "sliding with gaps": lambda time: ps.SlidingWindows("3ms", "7ms", time=time),
    "cumulative": lambda time: ps.CumulativeWindows("4ms", "12ms"),
}


def job_of(
    assigner: str = "tumbling",
    *,
    aggregate: str = "sum",
    time: Any = "event",
    lateness: str = "0s",
    behind: bool = False,
) -> BatchRunner:
    job = ps.Job("j", key_groups=3)
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.bounded("4ms")
    )
    windowed = readings.key_by("sensor").window(ASSIGNERS[assigner](time)).allowed_lateness(lateness)
    field = () if aggregate == "count" else ("value",)
    found = getattr(windowed, aggregate)("step", *field)
    found.sink_to("out")
    found.side_output("late").sink_to("late")
    if behind:
        # The bounds of the last windows reveal the event times that travel beside records.
        again = found.key_by("sensor").window(ASSIGNERS[assigner](time)).count("again")
        for name, stream in (("again", again), ("again-late", again.side_output("late"))):
            stream.sink_to(name)
            shown = stream.key_by("sensor").window(ps.TumblingWindows("1ms")).allowed_lateness("1h")
            shown.count(f"behind {name}").sink_to(f"behind-{name}")
    return BatchRunner(job, parallelism=2)


@pytest.fixture
def fast_runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each block of data took the fast path."""
    found: list[bool] = []
    put = WindowColumnsRun._put_columns

    def noted(self: WindowColumnsRun, data: Any) -> bool:
        found.append(put(self, data))
        return found[-1]

    monkeypatch.setattr(WindowColumnsRun, "_put_columns", noted)
    return found


def command(number: int, name: str, value: Any) -> bytes:
    """Return a command that changes a setting of the step."""
    told = {"id": str(number), "kind": "set", "target": {"step": "step"}, "payload": {name: value}}
    return json.dumps(told).encode()


READINGS = st.builds(
    Reading,
    st.sampled_from(["a", "b", "c", "d", "ä"]),
    st.integers(-15, 40),
    st.none() | st.floats(-5, 5, allow_nan=False) | st.just(0.1),
)
BATCHES = st.lists(
    st.tuples(st.lists(READINGS, max_size=12), st.integers(0, 15), st.booleans()), min_size=1, max_size=6
)


@examples(20)
@given(
    batches=BATCHES,
    assigner=st.sampled_from(sorted(ASSIGNERS)),
    aggregate=st.sampled_from(["count", "sum", "min", "max", "mean", "statistics", "approx_count_distinct"]),
    time=st.sampled_from(["event", "processing"]),
    lateness=st.sampled_from(["0ms", "6ms"]),
)
def test_both_roads_give_the_same_bytes(
    batches: Any, assigner: str, aggregate: str, time: str, lateness: str
) -> None:
    """Compared are output, late records, counts, and the state after each micro-batch."""
    options: dict[str, Any] = {"aggregate": aggregate, "time": time, "lateness": lateness, "behind": True}
    fast, slow = job_of(assigner, **options), job_of(assigner, **options)
    for readings, passed, ends in batches:
        fast.now += passed * MILLISECOND
        slow.now = fast.now
        inputs = {"readings": [("p", readings)]} if readings else {}
        found = fast.run(inputs, ends=ends)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slot_run, "runs_as_columns", lambda step: False)
            expected = slow.run(inputs, ends=ends)
        assert found.data == expected.data
        for kind in ("in_windows", "late", "without_window"):
            assert found.counts(kind) == expected.counts(kind)
        assert fast.states == slow.states


@dataclass
class Visit:
    page: str
    at: int
    value: Any


VALUES: dict[str, Callable[[int], Any]] = {
    "BIGINT": lambda number: number - 40,
    "SMALLINT": lambda number: number - 40,
    "BOOLEAN": lambda number: number > 40,
    "DOUBLE": lambda number: float("inf") if number == 7 else (number - 40) / 7 * (-1) ** number,
    "FLOAT": lambda number: (number - 40) / 7 * (-1) ** number,
    "STRING": lambda number: "ä" * (number // 10) + str(number),
    "BINARY": lambda number: bytes(number),
    "DATE": lambda number: dt.date(1969, 12, 1) + dt.timedelta(days=number),
    "TIMESTAMP": lambda number: EPOCH + (number - 40) * dt.timedelta(microseconds=1),
}


@pytest.mark.parametrize(
    ("kind", "assigner"), [*zip(VALUES, [*ASSIGNERS] * 3, strict=False), ("BIGINT", "cumulative")]
)
def test_both_roads_count_distinct_values_alike(kind: str, assigner: str, fast_runs: list[bool]) -> None:
    """This includes counts large enough to be estimated, missing values, and commands that change the accuracy."""

    def described() -> BatchRunner:
        job = ps.Job("j", key_groups=3)
        schema = f"page STRING, at BIGINT, value {kind}"
        visits = job.data_stream(
            "visits", schema=schema, event_time="at", watermarks=ps.Watermarks.bounded("8ms")
        )
        windowed = visits.key_by("page").window(ASSIGNERS[assigner]("event")).allowed_lateness("3ms")
        windowed.approx_count_distinct("step", "value", accuracy=0.25).sink_to("out")
        return BatchRunner(job, parallelism=2)

    fast, slow = described(), described()
    drawn = random.Random(f"{kind} {assigner}")
    most = 0
    for number, accuracy in enumerate([None, 0.2, None, 0.25, 0.1]):
        visits = [
            Visit(
                drawn.choice("abcd"),
                number * 8 + drawn.randrange(8),
                None if value % 9 == 0 else VALUES[kind](value),
            )
            for value in (drawn.randrange(80) for _ in range(300))
        ]
        inputs: dict[str, Any] = {"visits": [("p", visits[:200]), ("q", visits[200:])]}
        if accuracy is not None:
            inputs["commands"] = [("c", [command(number, "accuracy", accuracy)])]
        found = fast.run(inputs, ends=number == 4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slot_run, "runs_as_columns", lambda step: False)
            expected = slow.run(inputs, ends=number == 4)
        assert not found.dead_letters
        assert found.data == expected.data
        assert fast.states == slow.states
        most = max([most, *(record.distinct for record in found.output("out"))])
    assert all(fast_runs)
    assert most == 2 if kind == "BOOLEAN" else most > 17


@pytest.mark.parametrize("assigner", sorted(ASSIGNERS))
def test_usual_records_go_the_fast_road(assigner: str, fast_runs: list[bool]) -> None:
    job = job_of(assigner, aggregate="mean")
    for start in (0, 20, 40):
        job.run({"readings": [("p", [Reading(key, start + n, 1.0) for key in "abc" for n in range(20)])]})
    job.run({}, ends=True)
    assert fast_runs
    assert all(fast_runs)


def test_a_record_that_fires_its_window_again_does_not(fast_runs: list[bool]) -> None:
    job = job_of(lateness="50ms")
    job.run({"readings": [("p", [Reading("a", 4, 1.0), Reading("a", 30, 2.0)])]})
    result = job.run({"readings": [("p", [Reading("a", 5, 3.0)])]})
    assert [record.value for record in result.output("out")] == [4.0]
    assert fast_runs == [True, False]


def test_what_cannot_be_added_up_is_refused() -> None:
    job = ps.Job("j")
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    windowed = readings.key_by("number").window(ps.TumblingWindows("1s"))
    with pytest.raises(JobDefinitionError, match=r"'sensor' is string, but mean needs a number"):
        windowed.mean("step", "sensor")


def test_a_command_chooses_another_aggregate_and_another_size() -> None:
    """Open windows use the other aggregate at once; the size holds from the next window on."""
    job = job_of(aggregate="sum")
    job.run({"readings": [("p", [Reading("a", 3, 1.0), Reading("a", 4, 3.0)])]})

    assert not job.run({"commands": [("c", [command(1, "aggregate", "mean")])]}).dead_letters
    result = job.run({"readings": [("p", [Reading("a", 20, 5.0)])]})
    assert [record.value for record in result.output("out")] == [2.0]
    job.run({"commands": [("c", [command(2, "size", "20ms")])]})
    result = job.run(
        {"readings": [("p", [Reading("a", 21, 7.0), Reading("a", 26, 1.0), Reading("a", 99, 1.0)])]}
    )
    bounds = [
        (
            (record.window_start - EPOCH) // MILLISECOND,
            (record.window_end - EPOCH) // MILLISECOND,
            record.value,
        )
        for record in result.output("out")
    ]
    assert bounds == [(13, 23, 6.0), (23, 43, 1.0)]
    result = job.run({"commands": [("c", [command(3, "size", "banana")])]})
    assert "the size of TumblingWindows is 'banana'" in result.receipts[-1].reason
