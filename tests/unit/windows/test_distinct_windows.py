"""Distinct counts in jobs, for every kind of window, and when open windows are rescaled or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.checkpoints.described_state import describe_state
from penstock.checkpoints.evolution import plan_changes
from penstock.errors import JobDefinitionError
from penstock.snapshots.table_formats import decode, encode
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries
from penstock.testing.saved_states import begin_from, rescale_runner, take_savepoint


@dataclass
class Visit:
    page: str
    at: int
    visitor: int | None = None


@dataclass
class Basket:
    page: str
    at: int
    items: list[str]


Windows = Callable[[ps.KeyedStream], ps.WindowedStream]
Found = tuple[str, int | None, int | None, int]


def described(windows: Windows, accuracy: float = 0.03) -> ps.Job:
    job = ps.Job("j", key_groups=3)
    visits = job.data_stream(
        "visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("10ms")
    )
    windows(visits.key_by("page")).approx_count_distinct("step", "visitor", accuracy=accuracy).sink_to("out")
    return job


def tumbling(pages: ps.KeyedStream) -> ps.WindowedStream:
    return pages.window(ps.TumblingWindows("10ms"))


def sessions(pages: ps.KeyedStream) -> ps.WindowedStream:
    return pages.window(ps.SessionWindows("5ms"))


def counted(records: Iterable[Any]) -> list[Found]:
    """Return page, bounds in milliseconds and number of visitors of each window."""

    def ms(at: Any) -> int | None:
        return None if at is None else (at - EPOCH) // MILLISECOND

    return sorted((one.page, ms(one.window_start), ms(one.window_end), one.distinct) for one in records)


def run(job: BatchRunner, *visits: Visit, ends: bool = False) -> list[Found]:
    result = job.run({"visits": [("p", visits)]} if visits else {}, ends=ends)
    assert not result.dead_letters
    return counted(result.output("out"))


VISITS = st.lists(
    st.builds(Visit, st.sampled_from("ab"), st.integers(0, 40), st.none() | st.integers(0, 6)), max_size=40
)


def as_sessions(visits: list[Visit], gap: int) -> Iterable[tuple[str, int, int, list[Visit]]]:
    """The model: the sessions of all visits, in plain Python."""
    for page in sorted({visit.page for visit in visits}):
        session: list[Visit] = []
        for visit in sorted((one for one in visits if one.page == page), key=lambda one: one.at):
            if session and visit.at > session[-1].at + gap:
                yield page, session[0].at, session[-1].at + gap, session
                session = []
            session.append(visit)
        yield page, session[0].at, session[-1].at + gap, session


def differing(visits: Iterable[Visit]) -> int:
    return len({visit.visitor for visit in visits} - {None})


@given(VISITS, st.integers(0, 40))
def test_tumbling_windows_and_sessions_count_as_sets_do(visits: list[Visit], cut: int) -> None:
    """This holds however visits are divided into micro-batches; windows without visitors have count 0."""
    starts = {(visit.page, visit.at // 10 * 10) for visit in visits}
    by_window = [
        (page, at, at + 10, differing(one for one in visits if (one.page, one.at // 10 * 10) == (page, at)))
        for page, at in sorted(starts)
    ]
    by_session = [(page, start, end, differing(held)) for page, start, end, held in as_sessions(visits, 5)]
    for windows, expected in ((tumbling, by_window), (sessions, by_session)):
        job = BatchRunner(
            described(lambda pages, of=windows: of(pages).allowed_lateness("1h")), parallelism=2
        )
        # No window fires before the end, since no watermark gets that far.
        assert not run(job, *(visit for visit in visits[:cut] if visit.at < 10))
        rest = [visit for visit in visits[:cut] if visit.at >= 10] + visits[cut:]
        last = {(one[0], one[1]): one for one in [*run(job, *rest), *run(job, ends=True)]}
        assert sorted(last.values()) == expected


def test_sessions_that_merge_are_estimated_as_one() -> None:
    """Two sessions of 300 visitors, 100 of them shared, are merged by a visit in between."""
    job = BatchRunner(described(sessions, accuracy=0.1))
    first = [Visit("a", 2, number) for number in range(300)]
    second = [Visit("a", 12, number) for number in range(200, 500)]
    run(job, *first, *second)
    run(job, Visit("a", 7, 0))
    ((_, start, end, merged),) = run(job, ends=True)
    once = BatchRunner(described(sessions, accuracy=0.1))
    run(once, *[Visit("a", 2 + number // 300 * 5, number) for number in range(500)], Visit("a", 12, 0))
    assert (start, end) == (2, 17)
    assert [("a", start, end, merged)] == run(once, ends=True)
    assert merged == pytest.approx(500, rel=0.3)
    assert merged != 500


CASES: dict[str, tuple[Windows, list[Found]]] = {
    "sliding": (
        lambda pages: pages.window(ps.SlidingWindows("20ms", "10ms")),
        [("a", -10, 10, 2), ("a", 0, 20, 3), ("a", 10, 30, 2), ("b", -10, 10, 1), ("b", 0, 20, 1)],
    ),
    "cumulative": (
        lambda pages: pages.window(ps.CumulativeWindows("10ms", "20ms")),
        [("a", 0, 10, 2), ("a", 0, 20, 3), ("b", 0, 10, 1), ("b", 0, 20, 1)],
    ),
    "a trigger of one's own choice": (
        lambda pages: tumbling(pages).trigger(ps.CountTrigger(2)),
        [("a", 0, 10, 1), ("a", 0, 10, 2), ("a", 10, 20, 2)],
    ),
    "one that purges": (
        lambda pages: pages.window(ps.GlobalWindows()).trigger(ps.PurgingTrigger(ps.CountTrigger(3))),
        [("a", None, None, 2), ("a", None, None, 2)],
    ),
    "an evictor": (
        lambda pages: (
            pages.window(ps.GlobalWindows()).trigger(ps.CountTrigger(3)).evictor(ps.CountEvictor(2))
        ),
        [("a", None, None, 2), ("a", None, None, 2)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_window_counts(case: str) -> None:
    windows, expected = CASES[case]
    job = BatchRunner(described(windows))
    visits = [(1, 1), (2, 1), (3, 2), (4, None), (12, 2), (13, 3)]
    found = run(job, *(Visit("a", at, visitor) for at, visitor in visits), Visit("b", 5, 9))
    assert sorted([*found, *run(job, ends=True)]) == expected


def test_late_records_fire_a_window_again() -> None:
    """Each firing includes the late visitor, who may be new or known."""
    job = BatchRunner(described(lambda pages: tumbling(pages).allowed_lateness("1h")))
    run(job, Visit("a", 1, 1), Visit("a", 2, 2), Visit("a", 30, 1))
    assert run(job, Visit("a", 3, 2)) == [("a", 0, 10, 2)]
    assert run(job, Visit("a", 3, 3)) == [("a", 0, 10, 3)]


def test_windows_of_all_keys_count() -> None:
    job = ps.Job("j")
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.none())
    windowed = visits.key_by("page").process("same", Same()).window_all(ps.TumblingWindows("10ms"))
    windowed.approx_count_distinct("step", "visitor").sink_to("out")
    running = BatchRunner(job, parallelism=2)
    running.run({"visits": [("p", [Visit(page, 1, number) for number in range(5) for page in "abc"])]})
    (found,) = running.run({}, ends=True).output("out")
    assert (found.key, found.distinct) == (0, 5)


class Same(ps.ProcessFunction):
    def process_record(self, record: Visit, ctx: ps.Context) -> Iterable[Visit]:
        yield record


def visits_of(numbers: Iterable[int]) -> list[Visit]:
    return [Visit("abc"[number % 3], number % 20, number) for number in numbers]


@pytest.mark.parametrize("windows", [tumbling, sessions])
def test_open_windows_are_rescaled(windows: Windows) -> None:
    """They continue with the same bytes."""
    straight, moved = (BatchRunner(described(windows, 0.1), parallelism=2) for _ in range(2))
    for job in (straight, moved):
        run(job, *visits_of(range(0, 2_000, 2)))
    moved = rescale_runner(moved, 3)
    rest = visits_of(range(0, 2_000, 3))
    assert run(straight, *rest) == run(moved, *rest)
    found = run(straight, ends=True)
    assert found == run(moved, ends=True)
    assert len(found) == (6 if windows is tumbling else 3)


def test_a_job_with_another_accuracy_goes_on(tmp_path: Path) -> None:
    """State has the same form for every accuracy; dropped hashes stay dropped, as the sketch's limit records."""
    before = BatchRunner(described(tumbling, 0.1))
    run(before, *[Visit("a", 1, number) for number in range(3_000)])
    take_savepoint(before, str(tmp_path))
    for accuracy in (0.02, 0.1, 0.25):
        after = BatchRunner(described(tumbling, accuracy))
        begin_from(after, str(tmp_path))
        run(after, *[Visit("a", 1, number) for number in range(2_000, 4_000)])
        ((_, _, _, found),) = run(after, ends=True)
        assert found == pytest.approx(4_000, rel=3 * max(accuracy, 0.1))


def test_no_other_aggregate_takes_the_sketches_over() -> None:
    states = []
    for aggregate in ("approx_count_distinct", "mean"):
        job = ps.Job("j")
        visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.none())
        getattr(tumbling(visits.key_by("page")), aggregate)("step", "visitor").sink_to("out")
        states.append(describe_state("j", BatchRunner(job).plan).steps)
    (change,) = (one for one in plan_changes(states[1], states[0]) if one.state == "@windows")
    assert change.outcome == "refused"
    assert "result" in change.detail


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet"])
def test_a_dump_shows_the_hashes_and_can_be_loaded(file_format: Any) -> None:
    job = BatchRunner(described(tumbling, 0.25))
    run(job, Visit("few", 1, 42), Visit("few", 2, None), *[Visit("many", 1, number) for number in range(100)])
    (node,) = job.plan.graph.steps()
    schema = job.plan.core(node).state_schema
    ((_, stored),) = [(name, stored) for name, stored in job.states.items() if stored]
    dumped = {}
    for table in SlotTables(schema, MemoryEntries(stored)).tables.values():
        rows = table.all_rows()
        (back,) = decode(encode([rows], schema, file_format), schema, file_format)
        assert back.equals(rows)
        dumped |= {row["key"]: row["@windows"][0]["result"] for row in back.to_pylist()}
    assert dumped["few"] == {"hashes": [6533386293079482793], "limit": None}
    assert len(dumped["many"]["hashes"]) == 17
    assert dumped["many"]["limit"] > dumped["many"]["hashes"][-1]


def test_the_accuracy_is_a_setting() -> None:
    """Commands change it within its bounds, and a trace shows it."""
    job = BatchRunner(described(tumbling))

    def send(kind: str, payload: Any = None) -> Any:
        return job.run(commands(command_to("step", kind, payload))).receipts[-1]

    assert send("set", {"accuracy": 0.25}).status == "APPLIED"
    for bad in (0.3, 0.001, "fine", None):
        assert send("set", {"accuracy": bad}).status == "REJECTED"
    (traced,) = msgspec.json.decode(send("trace").details)
    assert traced["settings"] == {"accuracy": 0.25, "allowed_lateness": "0s", "size": "10ms"}
    run(job, *[Visit("a", 1, number) for number in range(5_000)])
    ((_, _, _, found),) = run(job, ends=True)
    assert found != pytest.approx(5_000, rel=0.001)
    assert found == pytest.approx(5_000, rel=0.75)


def test_what_cannot_be_counted_is_refused() -> None:
    """The error comes when the job is described: for values that cannot be hashed, and invalid accuracies."""
    job = ps.Job("j")
    baskets = job.data_stream("baskets", schema=Basket, event_time="at", watermarks=ps.Watermarks.none())
    windowed = tumbling(baskets.key_by("page"))
    with pytest.raises(JobDefinitionError, match=r"Step 'step': the field 'items' is list<.*Name a field of"):
        windowed.approx_count_distinct("step", "items")
    with pytest.raises(JobDefinitionError, match=r"Step 'step': The accuracy of a distinct count is 2"):
        windowed.approx_count_distinct("step", "page", accuracy=2)
