"""Window joins and co-groups: windows of both sides, late records and state, against a plain model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_support import Arrivals, Row, arrivals, keyed, outcome_of
from property_examples import examples

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing import JobHarness
from penstock.windows.assigners import SessionWindows, WindowAssigner

FIELDS = [
    "left.k AS lk",
    "left.v AS lv",
    "left.at AS la",
    "right.k AS rk",
    "right.v AS rv",
    "right.at AS ra",
    "unix_millis(window_start) AS ws",
    "unix_millis(window_end) AS we",
]

WINDOWS: list[Any] = [
    ps.TumblingWindows("20ms"),
    ps.TumblingWindows("20ms", offset="7ms"),
    ps.SlidingWindows("30ms", "10ms"),
    ps.SlidingWindows("10ms", "30ms"),
    ps.CumulativeWindows("10ms", "40ms"),
    ps.SessionWindows("8ms"),
]

Window = tuple[str, int, int]
"""A key, and the bounds of a window."""


def records(*rows: Row) -> list[dict[str, Any]]:
    """Records of a stream."""
    return [dict(zip(("k", "v", "at"), row, strict=True)) for row in rows]


def described(windows: Any, **options: Any) -> ps.Job:
    """Return a job that joins two streams in windows."""
    job = ps.Job("joined")
    result = keyed(job, "left").window_join(
        "join", keyed(job, "right"), windows, **{"fields": FIELDS} | options
    )
    result.sink_to("out")
    result.side_output("late_left").sink_to("late-left")
    return job


def in_windows(windows: WindowAssigner, sides: Sequence[Sequence[Row]]) -> list[Mapping[Window, list[Row]]]:
    """Return the rows of each side by window, found one by one."""
    found: list[dict[Window, list[Row]]] = [{} for _ in sides]
    if isinstance(windows, SessionWindows):
        gap_ms = windows.gap_ms
        assert gap_ms is not None
        both = [(row[0], row[2], side, row) for side, rows in enumerate(sides) for row in rows]
        sessions: list[list[Any]] = []
        for key, at_ms, side, row in sorted(both, key=lambda one: one[:3]):
            if not sessions or sessions[-1][0] != key or at_ms - sessions[-1][2] > gap_ms:
                sessions.append([key, at_ms, at_ms, []])
            sessions[-1][2] = at_ms
            sessions[-1][3].append((side, row))
        for key, start, last, members in sessions:
            for side, row in members:
                found[side].setdefault((key, start, last + gap_ms), []).append(row)
        return list(found)
    for side, rows in enumerate(sides):
        for row in rows:
            for window in windows.assign(None, row[2]):
                found[side].setdefault((row[0], window.start, window.end), []).append(row)
    return list(found)


@examples(60)
@given(
    arrivals(), st.sampled_from(WINDOWS), st.sampled_from(["inner", "left", "right", "full"]), st.booleans()
)
def test_a_join_is_that_of_plain_windows(come: Arrivals, windows: Any, how: Any, has_condition: bool) -> None:
    """This holds for any order within the lateness, any micro-batches, and failures in between."""
    come = without_null_order(come)
    job = described(windows, how=how, where="left.v <> right.v" if has_condition else None)
    run, found = outcome_of(job, come)
    left, right = in_windows(windows, [come.rows("left"), come.rows("right")])
    expected: Counter[tuple[Any, ...]] = Counter()
    for window in left.keys() | right.keys():
        bounds, mine, its = window[1:], left.get(window, []), right.get(window, [])
        pairs = [(a, b) for a in mine for b in its if not has_condition or a[1] != b[1]]
        expected.update((*a, *b, *bounds) for a, b in pairs)
        if how in ("left", "full"):
            expected.update((*a, None, None, None, *bounds) for a in mine if a not in [p for p, _ in pairs])
        if how in ("right", "full"):
            expected.update((None, None, None, *b, *bounds) for b in its if b not in [p for _, p in pairs])
    assert found == expected
    assert run.state("join") == {}


def without_null_order(come: Arrivals) -> Arrivals:
    """Replace nulls by numbers, since Python cannot sort nulls."""
    batches = [
        {name: [(k, -1 if v is None else v, at) for k, v, at in rows] for name, rows in batch.items()}
        for batch in come.batches
    ]
    return Arrivals(batches, come.events)


@dataclass
class Both:
    """The content of a window on both sides."""

    key: str
    start: int
    left: list[int]
    right: list[int]


def both(key: str, window: Any, left: list[Any], right: list[Any]) -> Iterator[Both]:
    """Return the values of both sides, by time; fails for a certain value."""
    if any(one.v == 3 for one in left):
        raise ValueError("three")
    yield Both(key, window.start, [one.v for one in left], [one.v for one in right])


def grouped(windows: Any) -> ps.Job:
    """Return a job that passes windows to a function."""
    job = ps.Job("joined")
    keyed(job, "left").co_group("join", keyed(job, "right"), windows, both).sink_to("out")
    return job


@examples(30)
@given(arrivals(), st.sampled_from(WINDOWS))
def test_a_function_gets_both_sides_of_each_window(come: Arrivals, windows: Any) -> None:
    """Windows with one side only are included; a window for which the function raises is a dead letter with
    its bounds.
    """
    come = without_null_order(come)
    run, _ = outcome_of(grouped(windows), come)
    left, right = in_windows(windows, [come.rows("left"), come.rows("right")])
    expected, failed = Counter[Any](), 0
    for window in left.keys() | right.keys():
        mine, its = left.get(window, []), right.get(window, [])
        if any(row[1] == 3 for row in mine):
            failed += 1
            continue
        values = (tuple(sorted(row[1] for row in mine)), tuple(sorted(row[1] for row in its)))
        expected[(window[0], window[1], *values)] += 1
    found = [
        (one.key, one.start, tuple(sorted(one.left)), tuple(sorted(one.right))) for one in run.output("out")
    ]
    assert Counter(found) == expected
    assert len(run.dead_letters()) == failed
    assert run.state("join") == {}


def test_the_records_of_a_window_are_in_the_order_of_time() -> None:
    """Their order of arrival does not matter."""
    run = JobHarness(grouped(ps.TumblingWindows("1s")))
    run.send("left", *records(("a", 1, 15), ("a", 2, 10)))
    run.run_batch()
    run.send("left", *records(("a", 0, 12)))
    run.finish()
    assert [one.left for one in run.output("out")] == [[2, 0, 1]]


def test_a_record_is_late_when_all_its_windows_have_ended() -> None:
    """A late record of an open session is in time."""
    run = JobHarness(described(ps.SlidingWindows("40ms", "20ms")))
    run.send("left", *records(("a", 1, 100)))
    run.send("right", *records(("a", 1, 100)))
    run.run_batch()
    run.send("left", *records(("a", 2, 65), ("a", 3, 35)))
    run.run_batch()
    assert [one.v for one in run.output("late-left")] == [3]
    run = JobHarness(described(ps.SessionWindows("30ms")))
    run.send("left", *records(("a", 1, 100), ("b", 1, 60)))
    run.send("right", *records(("a", 1, 100)))
    run.run_batch()
    run.send("left", *records(("b", 2, 40), ("c", 3, 40)))
    run.run_batch()
    assert [one.v for one in run.output("late-left")] == [3]


def test_state_stays_flat_over_a_day_of_event_time() -> None:
    """Records are removed with the last of their windows."""
    run = JobHarness(described(ps.SessionWindows("1m"), how="full"))
    sizes = []
    for minute in range(0, 24 * 60, 90):
        run.send("left", *records(*((f"k{minute}-{n}", 1, minute * 60_000 + n) for n in range(5))))
        run.send("right", *records((f"k{minute}-0", 2, minute * 60_000)))
        run.run_batch()
        sizes.append(len(run.state("join")))
    assert max(sizes) <= 5
    run.finish()
    assert run.state("join") == {}
    assert len(run.output("out")) == 16 * 5


@pytest.mark.parametrize(
    ("windows", "says"),
    [
        (ps.GlobalWindows(), "give TumblingWindows"),
        (ps.TumblingWindows("1s", time="processing"), "by event time"),
        (ps.SessionWindows(lambda record: "1s"), "the same for both sides"),
        ("1m", "joins in '1m'"),
    ],
)
def test_windows_that_joins_do_not_have_are_refused(windows: Any, says: str) -> None:
    """When the job is described."""
    with pytest.raises(JobDefinitionError, match=says):
        described(windows)


def test_a_function_that_emits_nothing_known_is_refused() -> None:
    """It needs an annotation or `output`."""
    job = ps.Job("joined")
    with pytest.raises(JobDefinitionError, match="does not say what it emits"):
        keyed(job, "left").co_group(
            "join", keyed(job, "right"), ps.TumblingWindows("1s"), lambda key, window, left, right: []
        )
