"""Window functions: all records, reduced, aggregated, and both combined with a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import JobDefinitionError, SchemaError, StateError
from penstock.state.folded_states import AggregateFunction
from penstock.windows.assigners import SessionWindows, TumblingWindows
from penstock.windows.contexts import Clock, WindowContext
from penstock.windows.evictors import CountEvictor
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.panes import OpenWindows
from penstock.windows.window import Window
from penstock.windows.window_functions import Aggregated, AllRecords, Reduced, WindowContents, WindowFunction


@dataclass
class Sum:
    total: float = 0.0
    count: int = 0


class Mean(AggregateFunction[float, Sum, float]):
    """Changes its accumulator in place."""

    def create_accumulator(self) -> Sum:
        return Sum()

    def add(self, value: float, accumulator: Sum) -> Sum:
        accumulator.total += value
        accumulator.count += 1
        return accumulator

    def get_result(self, accumulator: Sum) -> float:
        return accumulator.total / accumulator.count if accumulator.count else -1.0

    def merge(self, a: Sum, b: Sum) -> Sum:
        a.total += b.total
        a.count += b.count
        return a


class Told(WindowFunction):
    """Emits what it receives, with the key and the window."""

    def process(self, key: Any, records: Any, ctx: WindowContext) -> Iterable[Any]:
        yield key, tuple(ctx.window), list(records)


class Windows:
    """The windows of one key."""

    def __init__(self, contents: WindowContents, assigner: Any = None, **parts: Any) -> None:
        self.operator = WindowOperator(WindowSpec(assigner or TumblingWindows("1s"), contents, **parts))
        self.windows, self.clock = OpenWindows(), Clock()

    def add(self, time_ms: int, record: Any) -> None:
        self.operator.process(self.windows, "a", time_ms, record, self.clock)
        self.windows.commit()

    def until(self, watermark_ms: int) -> list[Any]:
        """Return what is emitted up to a watermark."""
        self.clock.watermark_ms = watermark_ms
        while self.windows.event_timers and self.windows.event_timers[0][0] <= watermark_ms:
            self.operator.fire_timer("event_timers", self.windows, "a", self.clock)
            self.windows.commit()
        return [result for pane in self.operator.emitted.panes for result in pane.results]


@pytest.mark.parametrize(
    ("contents", "emitted"),
    [
        (AllRecords(Told()), [("a", (0, 1_000), [3.0, 1.0, 2.0])]),
        (Reduced(max), [3.0]),
        (Reduced(max, Told()), [("a", (0, 1_000), [3.0])]),
        (Aggregated(Mean()), [2.0]),
        (Aggregated(Mean(), Told()), [("a", (0, 1_000), [2.0])]),
    ],
)
def test_a_window_emits_what_comes_of_its_records(contents: WindowContents, emitted: list[Any]) -> None:
    """This includes an evictor that keeps all records."""
    for parts in ({}, {"evictor": CountEvictor(9)}):
        windows = Windows(contents, **parts)
        for time_ms, value in ((5, 3.0), (900, 1.0), (20, 2.0)):
            windows.add(time_ms, value)
        kept = windows.windows.panes[Window(0, 1_000)]
        assert kept.count == 3
        assert isinstance(kept.contents, list) == (not contents.folds or bool(parts))
        assert windows.until(999) == emitted


@pytest.mark.parametrize(
    ("contents", "emitted"), [(Reduced(max, Told()), [("a", (0, 1_000), [])]), (Aggregated(Mean()), [-1.0])]
)
def test_a_window_may_emit_when_all_is_evicted(contents: WindowContents, emitted: list[Any]) -> None:
    """A reduce without records gives nothing; an aggregate gives the result of an empty accumulator."""
    windows = Windows(contents, evictor=CountEvictor(0))
    windows.add(5, 3.0)
    assert windows.until(999) == emitted


def test_accumulators_of_sessions_are_merged() -> None:
    """Reduced values are merged too."""
    for contents, emitted in ((Aggregated(Mean()), 2.0), (Reduced(max), 3.0)):
        windows = Windows(contents, SessionWindows("100ms"))
        for time_ms, value in ((0, 3.0), (150, 1.0), (75, 2.0)):
            windows.add(time_ms, value)
        assert windows.windows.panes[Window(0, 250)].count == 3
        assert windows.until(249) == [emitted]


def test_what_a_function_changes_in_place_is_taken_back() -> None:
    """The function gets a copy of the accumulator or of the value."""

    def joined(best: Sum, other: Sum) -> Sum:
        best.total += other.total
        return best

    first, windows = Sum(1.0), Windows(Reduced(joined))
    windows.add(5, first)
    windows.add(6, Sum(2.0))
    assert first.total == 1.0
    assert windows.until(999) == [Sum(3.0)]

    windows = Windows(Aggregated(Mean()), SessionWindows("100ms"))
    windows.add(0, 3.0)
    windows.add(150, 1.0)
    windows.operator.process(windows.windows, "a", 75, 2.0, windows.clock)
    windows.windows.roll_back()
    held = [pane.contents for _, pane in sorted(windows.windows.panes.items())]
    assert held == [Sum(3.0, 1), Sum(1.0, 1)]


def test_a_function_keeps_state_until_the_window_goes() -> None:
    """Each window has its own value."""

    class Numbered(WindowFunction):
        window_state = int

        def process(self, key: Any, records: Any, ctx: WindowContext) -> Iterable[Any]:
            ctx.state = (ctx.state or 0) + 1
            return [(ctx.window.start, ctx.state, ctx.watermark, ctx.processing_time)]

    windows = Windows(AllRecords(Numbered()), lateness="1s")
    windows.add(5, 1.0)
    windows.add(1_005, 1.0)
    assert windows.until(999) == [(0, 1, 999, 0)]
    windows.add(6, 1.0)
    assert windows.until(1_999)[1:] == [(0, 2, 999, 0), (1_000, 1, 1_999, 0)]
    assert Window(0, 1_000) not in windows.windows.panes


def test_a_function_emits_aside() -> None:
    """Side outputs must be declared; they have the window's key and time."""

    class Aside(WindowFunction):
        side_outputs = {"alarms": "a INT"}

        def process(self, key: Any, records: Any, ctx: WindowContext) -> None:
            ctx.side_output("alarms", len(records))
            ctx.side_output(records[0], 1)

    windows = Windows(AllRecords(Aside()))
    windows.add(5, "alarms")
    assert windows.until(999) == []
    assert windows.operator.emitted.side_outputs == [("a", Window(0, 1_000), "alarms", 1, 999)] * 2
    windows.add(1_005, "alerts")
    with pytest.raises(ValueError, match="'alerts' is not declared; declared are: alarms"):
        windows.until(1_999)
    assert len(windows.operator.emitted.side_outputs) == 2


def test_state_is_declared() -> None:
    """Undeclared state raises."""

    class Undeclared(WindowFunction):
        def process(self, key: Any, records: Any, ctx: WindowContext) -> None:
            ctx.state = 1

    windows = Windows(AllRecords(Undeclared()))
    windows.add(5, 1.0)
    with pytest.raises(StateError, match="declare its type as window_state"):
        windows.until(999)


def test_folding_must_come_to_something() -> None:
    """A fold to None is refused, since None means no value."""

    class Nothing(Mean):
        def add(self, value: float, accumulator: Sum) -> Any:
            return None

    windows = Windows(Reduced(lambda a, b: None))
    windows.add(5, 1.0)
    with pytest.raises(TypeError, match="reduce function of the window returned None"):
        windows.add(6, 1.0)
    with pytest.raises(TypeError, match="aggregate function Nothing returned None"):
        Windows(Aggregated(Nothing())).add(5, 1.0)


class Unmerged(Mean):
    merge = AggregateFunction.merge


class Stateful(Told):
    window_state = int


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (lambda: AllRecords(Told), JobDefinitionError, r"give an instance: Told\(\)"),
        (lambda: AllRecords(max), JobDefinitionError, "needs a WindowFunction, not builtin"),
        (lambda: AllRecords(WindowFunction()), JobDefinitionError, "does not override process"),
        (lambda: Reduced(5), JobDefinitionError, "is a function of two records, not 5"),
        (lambda: Reduced(max, min), JobDefinitionError, "needs a WindowFunction"),
        (lambda: Aggregated(Mean), SchemaError, r"give an instance: Mean\(\)"),
        (lambda: Windows(Aggregated(Unmerged()), SessionWindows("1s")), JobDefinitionError, "override merge"),
        (lambda: Windows(AllRecords(Stateful()), SessionWindows("1s")), JobDefinitionError, "window_state"),
    ],
)
def test_what_cannot_be_a_function_is_refused(made: Callable[[], Any], error: Any, said: str) -> None:
    """The error comes when it is described, and says what to do."""
    with pytest.raises(error, match=said):
        made()


def test_an_aggregate_need_not_merge_where_records_are_kept() -> None:
    """With an evictor all records are kept until the window fires, so nothing is merged."""
    windows = Windows(Aggregated(Unmerged()), SessionWindows("100ms"), evictor=CountEvictor(2))
    for time_ms, value in ((0, 3.0), (150, 1.0), (75, 2.0)):
        windows.add(time_ms, value)
    assert windows.until(249) == [1.5]
