"""The window operator: errors, changes while windows are open, and which parts can be combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from window_driver import Driver, everything, picture

from penstock.errors import JobDefinitionError
from penstock.windows.assigners import (
    CountWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)
from penstock.windows.contexts import Clock, TriggerContext, WindowContext
from penstock.windows.evictors import CountEvictor
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.panes import OpenWindows
from penstock.windows.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    PurgingTrigger,
)
from penstock.windows.window import GLOBAL, Window
from penstock.windows.window_functions import AllRecords, Reduced, WindowFunction
from penstock.windows.window_parameters import Parameter
from penstock.windows.window_timers import next_timer_ms


def driven(assigner: WindowAssigner, **parts: Any) -> Driver:
    return Driver(WindowOperator(WindowSpec(assigner, everything(), **parts)))


def record(time_ms: int, value: float = 0.0) -> dict[str, Any]:
    return {"key": "a", "ts": time_ms, "v": value}


def bounds(driver: Driver, elements: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return start, end and number of records of all panes."""
    return [(pane["start"], pane["end"], len(pane["values"])) for pane in driver.run(elements)]


class Fragile(WindowFunction):
    """Raises when there is a negative record."""

    window_state = int
    side_outputs = {"seen": "n INT"}

    def process(self, key: Any, records: Any, ctx: WindowContext) -> Iterable[Any]:
        ctx.state = (ctx.state or 0) + 1
        ctx.side_output("seen", len(records))
        yield sum(records)
        if min(records) < 0:
            raise ArithmeticError("negative")


class FragileSession(Fragile):
    window_state = None

    def process(self, key: Any, records: Any, ctx: WindowContext) -> Iterable[Any]:
        yield sum(records)
        if min(records) < 0:
            raise ArithmeticError("negative")


@pytest.mark.parametrize("assigner", [SlidingWindows("4s", "1s"), GlobalWindows()])
def test_a_record_that_raises_leaves_no_trace(assigner: WindowAssigner) -> None:
    """It is in none of its windows, emits nothing, and is not counted."""
    operator = WindowOperator(WindowSpec(assigner, AllRecords(Fragile()), trigger=CountTrigger(2)))
    windows, clock = OpenWindows(), Clock()
    operator.process(windows, "a", 5_000, 1, clock)
    windows.commit()
    before = picture(windows)
    with pytest.raises(ArithmeticError):
        operator.process(windows, "a", 5_500, -1, clock)
    assert picture(windows) == before
    assert operator.emitted.panes == operator.emitted.side_outputs == []
    assert operator.emitted.in_windows == 1
    operator.process(windows, "a", 5_500, 2, clock)
    assert {tuple(pane.results) for pane in operator.emitted.panes} == {(3,)}


def test_a_record_that_raises_leaves_sessions_apart() -> None:
    """The sessions that it would have merged stay separate."""
    operator = WindowOperator(
        WindowSpec(SessionWindows("100ms"), AllRecords(FragileSession()), trigger=CountTrigger(3))
    )
    windows, clock = OpenWindows(), Clock()
    for time_ms in (0, 150):
        operator.process(windows, "a", time_ms, 1, clock)
        windows.commit()
    before = picture(windows)
    with pytest.raises(ArithmeticError):
        operator.process(windows, "a", 75, -1, clock)
    assert picture(windows) == before
    assert sorted(windows.panes) == [Window(0, 100), Window(150, 250)]


def test_a_timer_that_raises_is_spent() -> None:
    """The function's changes are undone, but the window is still cleaned up."""
    operator = WindowOperator(WindowSpec(TumblingWindows("1s"), AllRecords(Fragile())))
    windows, clock = OpenWindows(), Clock()
    operator.process(windows, "a", 5, -1, clock)
    clock.watermark_ms = 999
    with pytest.raises(ArithmeticError):
        operator.fire_timer("event_timers", windows, "a", clock)
    windows.commit()
    assert picture(windows) == picture(OpenWindows())
    assert operator.emitted.panes == operator.emitted.side_outputs == []


def test_a_window_goes_on_firing_after_a_timer_that_raised() -> None:
    """The timers that the trigger set are kept; the function's state changes are not."""
    operator = WindowOperator(
        WindowSpec(TumblingWindows("1s"), AllRecords(Fragile()), trigger=ContinuousEventTimeTrigger("300ms"))
    )
    windows, clock = OpenWindows(), Clock()
    operator.process(windows, "a", 5, -1, clock)
    clock.watermark_ms = 700
    with pytest.raises(ArithmeticError):
        operator.fire_timer("event_timers", windows, "a", clock)
    windows.commit()
    assert windows.panes[Window(0, 1_000)].window_state is None
    assert next_timer_ms("event_timers", windows) == 600


def test_a_trigger_that_raises_at_a_timer_changes_nothing() -> None:
    """Only the timer is consumed."""

    class Raises(EventTimeTrigger):
        state_type = int

        def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> Any:
            ctx.state = 5
            ctx.register_event_timer(time_ms + 1)
            raise ArithmeticError

    operator = WindowOperator(
        WindowSpec(TumblingWindows("1s"), everything(), trigger=Raises(), lateness="1s")
    )
    windows, clock = OpenWindows(), Clock()
    operator.process(windows, "a", 5, {}, clock)
    clock.watermark_ms = 999
    with pytest.raises(ArithmeticError):
        operator.fire_timer("event_timers", windows, "a", clock)
    windows.commit()
    assert windows.panes[Window(0, 1_000)].trigger_state is None
    assert windows.event_timers == [(1_999, Window(0, 1_000))]


def test_a_window_is_cleaned_up_when_clearing_raises() -> None:
    """No state of it remains."""

    class Raises(EventTimeTrigger):
        def clear(self, window: Window, ctx: TriggerContext) -> None:
            raise ArithmeticError

    operator = WindowOperator(WindowSpec(TumblingWindows("1s"), everything(), trigger=Raises()))
    windows, clock = OpenWindows(), Clock()
    operator.process(windows, "a", 5, {}, clock)
    clock.watermark_ms = 999
    with pytest.raises(ArithmeticError):
        operator.fire_timer("event_timers", windows, "a", clock)
    windows.commit()
    assert picture(windows) == picture(OpenWindows())


def test_a_timer_of_a_window_that_has_vanished_does_nothing() -> None:
    """As in Flink."""
    operator, windows, clock = driven(TumblingWindows("1s")).operator, OpenWindows(), Clock()
    windows.event_timers.append((5, Window(0, 1_000)))
    windows.processing_timers.append((5, Window(0, 1_000)))
    operator.fire_timer("event_timers", windows, "a", clock)
    operator.fire_timer("processing_timers", windows, "a", clock)
    assert picture(windows) == picture(OpenWindows())


def test_a_new_size_counts_from_the_next_window_on() -> None:
    """Open windows continue, and a key's windows never overlap."""
    size = Parameter("1s")
    driver = driven(TumblingWindows(size))
    driver.run([record(3_100), record(6_100)])
    size.set("5s")
    driver.run([record(3_200), record(4_200), record(100), record(5_500), record(7_500), record(12_000)])
    assert driver.keys["a"].fitting == 0
    assert bounds(driver, [{"wm": 20_000}]) == [
        (0, 3_000, 1),
        (3_000, 4_000, 2),
        (4_000, 5_000, 1),
        (5_000, 6_000, 1),
        (6_000, 7_000, 1),
        (7_000, 10_000, 1),
        (10_000, 15_000, 1),
    ]
    driver.run([record(21_000)])
    assert driver.keys["a"].fitting == 1


def test_windows_that_were_stored_under_another_size_go_on() -> None:
    """Their old size is unknown when they are loaded."""
    driver = driven(TumblingWindows("1s"))
    driver.run([record(3_100)])
    changed = driven(TumblingWindows("5s"))
    changed.keys["a"] = OpenWindows.of(driver.keys["a"].panes.items())
    changed.run([record(3_900), record(2_000)])
    assert sorted(changed.keys["a"].panes) == [Window(0, 3_000), Window(3_000, 4_000)]


def test_sliding_windows_that_are_open_go_on_beside_new_ones() -> None:
    """They continue until their end."""
    size = Parameter("2s")
    driver = driven(SlidingWindows(size, "1s"))
    driver.run([record(1_500)])
    size.set("1s")
    assert bounds(driver, [record(1_600), record(2_500), {"wm": 9_000}]) == [
        (0, 2_000, 2),
        (1_000, 2_000, 1),
        (1_000, 3_000, 3),
        (2_000, 3_000, 1),
    ]


def test_a_longer_gap_counts_for_records_that_come() -> None:
    """Open sessions keep their ends."""
    gap = Parameter("100ms")
    driver = driven(SessionWindows(gap))
    driver.run([record(0)])
    gap.set("1s")
    assert bounds(driver, [record(200), {"wm": 5_000}]) == [(0, 100, 1), (200, 1_200, 1)]


def test_a_longer_lateness_keeps_windows_that_are_open() -> None:
    """This includes windows without new records, whose cleanup had been scheduled earlier."""
    lateness = Parameter("0s")
    driver = driven(TumblingWindows("1s"), lateness=lateness)
    driver.run([record(5)])
    lateness.set("1s")
    assert bounds(driver, [{"wm": 999}, record(6), {"wm": 1_998}, record(7)]) == [
        (0, 1_000, 1),
        (0, 1_000, 2),
        (0, 1_000, 3),
    ]
    driver.run([{"wm": 1_999}])
    assert not driver.keys["a"].panes
    assert not driver.keys["a"].event_timers


def test_a_window_whose_lateness_has_grown_is_cleaned_up_without_a_record() -> None:
    """It is cleaned up at the new time."""
    lateness = Parameter("0s")
    driver = driven(TumblingWindows("1s"), lateness=lateness)
    driver.run([record(5)])
    lateness.set("1s")
    driver.run([{"wm": 1_998}])
    assert list(driver.keys["a"].panes) == [Window(0, 1_000)]
    driver.run([{"wm": 1_999}])
    assert picture(driver.keys["a"]) == picture(OpenWindows())


def test_a_window_fires_nothing_when_all_was_evicted_after_it() -> None:
    """An empty pane is emitted only if there were records before eviction."""
    continuous = ContinuousEventTimeTrigger("300ms")
    after = driven(TumblingWindows("1s"), trigger=continuous, evictor=CountEvictor(0, after=True))
    assert bounds(after, [record(5), {"wm": 700}]) == [(0, 1_000, 1)]
    before = driven(TumblingWindows("1s"), trigger=continuous, evictor=CountEvictor(0))
    assert bounds(before, [record(5), {"wm": 700}]) == [(0, 1_000, 0)]


def test_a_shorter_lateness_makes_records_late() -> None:
    """Windows are cleaned up at the scheduled time at the latest."""
    lateness = Parameter("1s")
    driver = driven(TumblingWindows("1s"), lateness=lateness)
    driver.run([record(5), {"wm": 1_500}])
    lateness.set("100ms")
    driver.run([record(6)])
    assert driver.operator.emitted.dropped_late == 1
    driver.run([{"wm": 1_999}])
    assert not driver.keys["a"].panes


def test_a_session_is_not_merged_by_a_record_that_is_late_now() -> None:
    """The session does not change."""
    lateness = Parameter("1s")
    driver = driven(SessionWindows("100ms"), lateness=lateness)
    driver.run([record(0), {"wm": 500}])
    lateness.set("0s")
    driver.run([record(50)])
    assert driver.operator.emitted.dropped_late == 1
    assert list(driver.keys["a"].panes) == [Window(0, 100)]


def test_nothing_is_kept_of_a_global_window_that_is_purged() -> None:
    """So keys that occur once do not accumulate."""
    driver = driven(CountWindows(2))
    assert len(driver.run([record(1), record(2)])) == 1
    assert not driver.keys["a"].panes
    driver.run([record(3)])
    assert list(driver.keys["a"].panes) == [GLOBAL]


def test_contents_of_merged_sessions_stand_the_earlier_session_first() -> None:
    """The record that merged them is last; Flink leaves this order undefined."""
    driver = driven(SessionWindows("100ms"))
    panes = driver.run([record(150, 1.0), record(0, 2.0), record(160, 3.0), record(75, 4.0), {"wm": 999}])
    assert [pane["values"] for pane in panes] == [[2.0, 1.0, 3.0, 4.0]]


def test_every_record_is_counted_once() -> None:
    """Each is in a window, late, or in a gap without being late."""
    driver = driven(SlidingWindows("1s", "2s"), late_output=True)
    driver.run([record(100), record(1_500), {"wm": 1_700}, record(200), record(1_600), record(1_800)])
    emitted = driver.operator.emitted
    assert (emitted.in_windows, emitted.late_records, emitted.dropped_late, emitted.without_window) == (
        1,
        2,
        0,
        2,
    )
    assert [e["late"]["ts"] for e in driver.emissions if "late" in e] == [200, 1_600]


def test_windows_are_kept_by_key() -> None:
    """One operator serves all keys, in the order of time."""
    operator = WindowOperator(WindowSpec(TumblingWindows("1s"), Reduced(max)))
    driver = Driver(operator)
    for key, time_ms in (("b", 1_500), ("a", 2_500), ("b", 2_400)):
        operator.process(driver.keys.setdefault(key, OpenWindows()), key, time_ms, time_ms, driver.clock)
    driver.clock.watermark_ms = 5_000
    for key, time_ms in (("b", 1_999), ("b", 2_999), ("a", 2_999)):
        assert next_timer_ms("event_timers", driver.keys[key]) == time_ms
        operator.fire_timer("event_timers", driver.keys[key], key, driver.clock)
    assert [(pane.key, pane.results, pane.timestamp_ms) for pane in operator.emitted.panes] == [
        ("b", [1_500], 1_999),
        ("b", [2_400], 2_999),
        ("a", [2_500], 2_999),
    ]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: driven(TumblingWindows), r"is the class TumblingWindows; give an instance"),
        (lambda: driven("5s"), "assigner of a window is '5s', which is not of type WindowAssigner"),
        (
            lambda: driven(GlobalWindows(), trigger=CountTrigger),
            "trigger of a window is the class CountTrigger",
        ),
        (
            lambda: driven(GlobalWindows(), evictor=5),
            "evictor of a window is 5, which is not of type Evictor",
        ),
        (lambda: driven(TumblingWindows("1s"), lateness="-1s"), "the allowed lateness of a window is '-1s'"),
        (
            lambda: driven(SessionWindows("1s"), trigger=DeltaTrigger(1.0, max)),
            "DeltaTrigger cannot be the trigger of windows that merge, such as SessionWindows",
        ),
        (
            lambda: driven(SessionWindows("1s"), trigger=PurgingTrigger(DeltaTrigger(1.0, max))),
            "PurgingTrigger cannot be the trigger",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(made: Callable[[], Any], said: str) -> None:
    """The error comes when the windows are described, and says what to do."""
    with pytest.raises(JobDefinitionError, match=said):
        made()
