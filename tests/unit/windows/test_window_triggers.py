"""Window triggers: decisions that Flink's cases do not cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from window_driver import Driver, everything

from penstock.errors import JobDefinitionError, StateError
from penstock.windows.assigners import GlobalWindows, SessionWindows, TumblingWindows, WindowAssigner
from penstock.windows.contexts import TriggerContext
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from penstock.windows.window import Window
from penstock.windows.window_parameters import Parameter

END = 2**63 - 1


def driven(trigger: Trigger, assigner: WindowAssigner | None = None) -> Driver:
    return Driver(
        WindowOperator(WindowSpec(assigner or TumblingWindows("1s"), everything(), trigger=trigger))
    )


def record(time_ms: int, value: float = 0.0) -> dict[str, Any]:
    return {"key": "a", "ts": time_ms, "v": value}


def values(driver: Driver, elements: list[dict[str, Any]]) -> list[list[float]]:
    return [pane["values"] for pane in driver.run(elements)]


def test_a_count_may_change() -> None:
    """The count so far is kept."""
    count = Parameter(3)
    driver = driven(CountTrigger(count))
    assert values(driver, [record(1), record(2)]) == []
    count.set(2)
    assert values(driver, [record(3, 1.0)]) == [[0.0, 0.0, 1.0]]


def test_an_interval_may_change() -> None:
    """The next firing stays as scheduled."""
    interval = Parameter("100ms")
    driver = driven(ContinuousEventTimeTrigger(interval))
    driver.run([record(1)])
    interval.set("300ms")
    assert [pane["time"] for pane in driver.run([{"wm": 900}])] == [100, 400, 700]


def test_a_threshold_may_change() -> None:
    """The change holds from the next record on."""
    threshold = Parameter(5.0)
    driver = driven(DeltaTrigger(threshold, lambda old, new: new["v"] - old["v"]))
    driver.run([record(1, 1.0), record(2, 5.0)])
    threshold.set(1)
    assert len(driver.run([record(3, 2.5)])) == 1


def test_continuous_firing_of_a_window_without_an_end_stops_with_the_stream() -> None:
    """It fires at the scheduled time and at the end, but not at each interval until the end of time."""
    driver = driven(ContinuousEventTimeTrigger("100ms"), GlobalWindows())
    assert [pane["time"] for pane in driver.run([record(1), {"wm": 250}, {"wm": END}])] == [
        100,
        200,
        300,
        END,
    ]


def test_continuous_firing_by_the_clock_outlasts_the_end_by_event_time() -> None:
    """It continues until the watermark cleans the window up, however far the clock is."""
    driver = driven(ContinuousProcessingTimeTrigger("1s"))
    driver.run([{"pt": 5_000}, record(1), {"pt": 7_500}])
    assert [pane["time"] for pane in driver.emissions] == [6_000, 7_000]
    assert len(driver.run([{"wm": 2_000}, {"pt": 20_000}])) == 2
    assert not driver.keys["a"].processing_timers


def test_purging_passes_on_what_the_other_needs() -> None:
    """State, merging and timers are the inner trigger's; a bare purge stays one."""

    class Purges(NeverTrigger):
        def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
            return TriggerResult.PURGE

    assert PurgingTrigger(CountTrigger(2)).state_type is int
    assert PurgingTrigger(CountTrigger(2)).can_merge
    assert not PurgingTrigger(DeltaTrigger(1.0, max)).can_merge
    assert PurgingTrigger(Purges()).on_event_time(1, Window(0, 1), TriggerContext(keeps_state=False)) is (
        TriggerResult.PURGE
    )


class Recording(Trigger):
    """Records the calls it receives, and keeps a count of records."""

    state_type = int
    can_merge = True

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.asked.append(("record", time_ms, tuple(window), ctx.watermark, ctx.processing_time))
        ctx.state = (ctx.state or 0) + 1
        ctx.register_event_timer(time_ms + 10)
        ctx.register_event_timer(time_ms + 10)
        ctx.register_event_timer(time_ms + 20)
        ctx.delete_event_timer(time_ms + 20)
        ctx.delete_event_timer(time_ms + 30)
        ctx.register_processing_timer(ctx.processing_time + 5)
        ctx.register_processing_timer(ctx.processing_time + 6)
        ctx.delete_processing_timer(ctx.processing_time + 6)
        ctx.delete_event_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.asked.append(("event", time_ms, tuple(window), ctx.state))
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.asked.append(("processing", time_ms, tuple(window), ctx.state))
        return TriggerResult.FIRE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        self.asked.append(("merge", tuple(window), ctx.merged_states))
        ctx.state = sum(ctx.merged_states)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.asked.append(("clear", tuple(window), ctx.state))


def test_ones_own_trigger_is_asked() -> None:
    """It is called for records, timers and at the end; a timer fires once, and the cleanup timer cannot be
    deleted.
    """
    trigger = Recording()
    driver = driven(trigger)
    panes = driver.run([record(100), {"wm": 500}, {"pt": 5}, {"wm": 999}])
    first = -(2**63)
    assert trigger.asked == [
        ("record", 100, (0, 1_000), first, 0),
        ("event", 110, (0, 1_000), 1),
        ("processing", 5, (0, 1_000), 1),
        ("event", 999, (0, 1_000), 1),
        ("clear", (0, 1_000), 1),
    ]
    assert len(panes) == 1
    assert not driver.keys["a"].panes


def test_ones_own_trigger_merges() -> None:
    """It gets the states of the merged windows, earliest first; then each of those is cleared."""
    trigger = Recording()
    driver = driven(trigger, SessionWindows("100ms"))
    driver.run([record(150), record(0), record(10), record(80)])
    told = [asked for asked in trigger.asked if asked[0] in {"merge", "clear"}]
    assert told == [
        ("merge", (0, 110), (1,)),
        ("clear", (0, 100), 1),
        ("merge", (0, 250), (2, 1)),
        ("clear", (0, 110), 2),
        ("clear", (150, 250), 1),
    ]
    assert [time_ms for time_ms, _ in driver.keys["a"].event_timers] == [90, 249]


class Careless(Trigger):
    """Calls the context with whatever it is given."""

    def __init__(self, act: Callable[[TriggerContext], Any]) -> None:
        self._act = act

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        found: TriggerResult = self._act(ctx)
        return found


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (lambda ctx: None, TypeError, "Careless returned None, which is not a TriggerResult"),
        (lambda ctx: setattr(ctx, "state", 1), StateError, "triggers that declare its type as state_type"),
        (lambda ctx: ctx.register_event_timer(1.5), TypeError, "milliseconds since 1970, not 1.5"),
        (lambda ctx: ctx.register_processing_timer(2**63), ValueError, "does not fit into 64 bits"),
    ],
)
def test_what_a_trigger_cannot_do(
    act: Callable[[TriggerContext], Any], error: type[Exception], said: str
) -> None:
    """The error says so, and the record leaves no trace."""
    driver = driven(Careless(act))
    with pytest.raises(error, match=said):
        driver.run([record(1)])
    assert not driver.keys["a"].panes
    assert driver.operator.emitted.in_windows == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: CountTrigger(0), "the count of a CountTrigger is 0"),
        (lambda: DeltaTrigger(1.0, 2.0), "delta of a DeltaTrigger is a function of two records, not 2.0"),
        (lambda: ContinuousEventTimeTrigger("0s"), "the interval of a ContinuousEventTimeTrigger is '0s'"),
        (
            lambda: ContinuousProcessingTimeTrigger(5),
            "the interval of a ContinuousProcessingTimeTrigger is 5",
        ),
        (lambda: PurgingTrigger(CountTrigger), "takes a trigger, not"),
    ],
)
def test_what_makes_no_trigger_is_refused(made: Callable[[], Any], said: str) -> None:
    """The error says what to do."""
    with pytest.raises(JobDefinitionError, match=said):
        made()


def test_the_base_of_triggers_only_waits() -> None:
    """Timers unknown to a trigger have no effect."""
    ctx = TriggerContext(keeps_state=False)
    for trigger in (Trigger(), EventTimeTrigger(), ProcessingTimeTrigger(), NeverTrigger()):
        assert trigger.on_event_time(5, Window(0, 10), ctx) is TriggerResult.CONTINUE
        assert trigger.on_processing_time(5, Window(0, 10), ctx) is TriggerResult.CONTINUE
