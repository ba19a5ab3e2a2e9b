"""Drives the window operator with the elements of a case, as a step does with its keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from penstock.windows import assigners, evictors, triggers
from penstock.windows.contexts import Clock, TriggerContext, WindowContext
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.panes import OpenWindows, TimerKind
from penstock.windows.window import GLOBAL, Window
from penstock.windows.window_functions import AllRecords, WindowContents, WindowFunction
from penstock.windows.window_timers import in_time_order, next_timer_ms

__all__ = ["Driver", "everything", "made_operator", "picture"]

Element = dict[str, Any]


def ms(number: int) -> dt.timedelta | str:
    """Return a duration; a timedelta cannot hold the longest ones."""
    return f"{number}ms" if number >= 2**53 else dt.timedelta(milliseconds=number)


def delta(old: Element, new: Element) -> float:
    """Return the distance between the values of two records."""
    return abs(float(new["v"]) - float(old["v"]))


def made_assigner(spec: Element) -> assigners.WindowAssigner:
    """Return the assigner that a case describes."""
    kind = spec["type"]
    time: Any = "processing" if kind.startswith("pt_") else "event"
    match kind.removeprefix("pt_"):
        case "tumbling":
            return assigners.TumblingWindows(ms(spec["size"]), ms(spec.get("offset", 0)), time)
        case "sliding":
            offset = ms(spec.get("offset", 0))
            return assigners.SlidingWindows(ms(spec["size"]), ms(spec["slide"]), offset, time)
        case "cumulative":
            return assigners.CumulativeWindows(ms(spec["step"]), ms(spec["size"]), ms(spec["offset"]))
        case "session":
            return assigners.SessionWindows(ms(spec["gap"]), time)
        case "dynamic_session":
            return assigners.SessionWindows(lambda record: ms(record["gap"]))
        case "global":
            return assigners.GlobalWindows()
        case "count_tumbling":
            return assigners.CountWindows(spec["n"])
        case "count_sliding":
            return assigners.CountWindows(spec["n"], spec["slide"])
    raise AssertionError(kind)


def made_trigger(spec: Element) -> triggers.Trigger | None:
    """Return the trigger that a case describes, or None for the assigner's default."""
    match spec["type"]:
        case "default":
            return None
        case "event_time":
            return triggers.EventTimeTrigger()
        case "processing_time":
            return triggers.ProcessingTimeTrigger()
        case "count":
            return triggers.CountTrigger(spec["n"])
        case "delta":
            return triggers.DeltaTrigger(spec["threshold"], delta)
        case "continuous_event_time":
            return triggers.ContinuousEventTimeTrigger(ms(spec["interval"]))
        case "continuous_processing_time":
            return triggers.ContinuousProcessingTimeTrigger(ms(spec["interval"]))
        case "never":
            return triggers.NeverTrigger()
        case "purging":
            of = made_trigger(spec["of"])
            assert of is not None
            return triggers.PurgingTrigger(of)
    raise AssertionError(spec)


def made_evictor(spec: Element) -> evictors.Evictor | None:
    """Return the evictor that a case describes."""
    match spec["type"]:
        case "none":
            return None
        case "count":
            return evictors.CountEvictor(spec["n"], after=spec["after"])
        case "time":
            return evictors.TimeEvictor(ms(spec["ms"]), after=spec["after"])
        case "delta":
            return evictors.DeltaEvictor(spec["threshold"], delta, after=spec["after"])
    raise AssertionError(spec)


class AtEndOfStream(triggers.Trigger):
    """Flink's trigger of global windows that fire only at the end of the stream."""

    def on_record(
        self, record: Any, time_ms: int, window: Window, ctx: TriggerContext
    ) -> triggers.TriggerResult:
        ctx.register_event_timer(window.max_timestamp)
        return triggers.TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> triggers.TriggerResult:
        return triggers.TriggerResult.FIRE


class Everything(WindowFunction):
    """Emits all records of a window as one list."""

    def process(self, key: Any, records: Any, ctx: WindowContext) -> Iterable[Any]:
        return [list(records)]


def everything() -> WindowContents:
    """Return contents whose single result is the list of all records."""
    return AllRecords(Everything())


def made_operator(spec: Element, contents: WindowContents | None = None) -> WindowOperator:
    """Return the operator for the windows of a case."""
    trigger = made_trigger(spec["trigger"])
    if trigger is None and spec["assigner"].get("end_of_stream"):
        trigger = AtEndOfStream()
    return WindowOperator(
        WindowSpec(
            made_assigner(spec["assigner"]),
            contents or everything(),
            trigger=trigger,
            evictor=made_evictor(spec["evictor"]),
            lateness=ms(spec["lateness"]),
            late_output=spec["late_output"],
        )
    )


class Driver:
    """The keys of one operator, each with its windows, and the clock.

    `around` is called for each record and timer, with the function that processes it.
    """

    def __init__(
        self,
        operator: WindowOperator,
        around: Callable[[OpenWindows, Callable[[], None]], None] = lambda windows, act: act(),
    ) -> None:
        self.operator = operator
        self.clock = Clock()
        self.keys: dict[Any, OpenWindows] = {}
        self.emissions: list[Element] = []
        self._around = around

    def run(self, elements: Iterable[Element]) -> list[Element]:
        """Run the elements; return the output in the form of the cases."""
        for at, element in enumerate(elements):
            if "wm" in element:
                self.watermark(element["wm"], at)
            elif "pt" in element:
                self.processing_time(element["pt"], at)
            else:
                self.record({**element, "seq": at}, at)
        return self.emissions

    def record(self, element: Element, at: int = 0) -> None:
        windows = self.keys.setdefault(element["key"], OpenWindows())
        clock = self.clock
        self._around(
            windows,
            lambda: self.operator.process(windows, element["key"], element["ts"], element, clock),
        )
        windows.commit()
        self._take(at, {"cause": "element"})

    def watermark(self, time_ms: int, at: int = 0) -> None:
        if time_ms <= self.clock.watermark_ms:
            return
        self.clock.watermark_ms = time_ms
        for key, windows in in_time_order("event_timers", list(self.keys.items()), time_ms):
            self._fire("event_timers", key, windows)
            self._take(at, {"cause": "wm_timer", "time": self._fired})

    def processing_time(self, time_ms: int, at: int = 0) -> None:
        self.clock.processing_ms = time_ms
        for key, windows in in_time_order("processing_timers", list(self.keys.items()), time_ms):
            self._fire("processing_timers", key, windows)
            self._take(at, {"cause": "pt_timer", "time": self._fired})

    def _fire(self, kind: TimerKind, key: Any, windows: OpenWindows) -> None:
        self._fired = next_timer_ms(kind, windows)
        self._around(windows, lambda: self.operator.fire_timer(kind, windows, key, self.clock))
        windows.commit()

    def _take(self, at: int, cause: Element) -> None:
        emitted = self.operator.emitted
        for key, window, results, timestamp_ms in emitted.panes:
            bounds = (None, None) if window == GLOBAL else window
            (records,) = results
            self.emissions.append(
                {
                    "key": key,
                    "start": bounds[0],
                    "end": bounds[1],
                    "values": [float(record["v"]) for record in records],
                    # Flink stamps results of the endless window with its end.
                    "ts": window.max_timestamp if window == GLOBAL else timestamp_ms,
                    "at": at,
                    **cause,
                    "seq": [record["seq"] for record in records],
                }
            )
        for late in emitted.late:
            told = {name: value for name, value in late.record.items() if name != "seq"}
            self.emissions.append({"late": told, "at": at})
        emitted.panes.clear()
        emitted.late.clear()


def picture(windows: OpenWindows) -> Any:
    """Return all state of a key's windows for comparison; check that derived data agrees with it."""
    panes = {
        window: (
            list(pane.contents) if isinstance(pane.contents, list) else pane.contents,
            pane.count,
            pane.trigger_state,
            pane.window_state,
            pane.cleanup_ms,
            sorted(pane.event_timers),
            sorted(pane.processing_timers),
        )
        for window, pane in windows.panes.items()
    }
    restored = OpenWindows.of(windows.panes.items())
    assert restored.event_timers == windows.event_timers
    assert restored.processing_timers == windows.processing_timers
    assert windows.in_order in (None, sorted(windows.panes))
    return panes, list(windows.event_timers), list(windows.processing_timers)
