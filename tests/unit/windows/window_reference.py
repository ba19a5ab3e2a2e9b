"""Reference model of windows: the behaviour of Apache Flink's windows, written to be obviously right, not
fast.

The spec of the windows, the elements and the emissions are as in the cases of windowing. Nothing here is
cached, indexed or taken from penstock. A comment names a case that demonstrates its statement.

Two things are random in Flink and defined here: timers of one time fire in the order in which they were set,
and the contents of merged sessions are in order of arrival.

One thing differs. If a record of a dynamic session has by itself exactly the bounds of an already merged
session, Flink's code loses the contents of that session; here the record joins them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from window_parts import (
    EVENT,
    EVENT_TIME,
    FOREVER,
    GLOBAL,
    PROCESSING,
    SESSIONS,
    Clocks,
    OpenWindow,
    Record,
    Timer,
    Window,
    assigned,
    cover,
    kept,
    made_trigger,
    touch,
)

__all__ = ["EndlessFiringError", "Outcome", "run", "windowed"]

MAX_FIRINGS = 10_000
"""More timers than this fire for one element only where a trigger continues for ever."""


class EndlessFiringError(Exception):
    """A trigger fires endlessly."""


@dataclass
class Outcome:
    """What was emitted, and the fate of each record by index of its element.

    Every record is in exactly one of `accepted`, `late`, `dropped_late` and `dropped_in_gap`. An accepted
    record that is not `shown` in any pane is in at least one of `evicted`, `cleaned` and `held`.
    """

    emissions: list[dict[str, Any]] = field(default_factory=list)
    records: set[int] = field(default_factory=set)
    """All of them."""
    accepted: set[int] = field(default_factory=set)
    """Put into at least one window."""
    late: set[int] = field(default_factory=set)
    """Emitted as late."""
    dropped_late: set[int] = field(default_factory=set)
    """Late, and there is no late output."""
    dropped_in_gap: set[int] = field(default_factory=set)
    """Without any window, since these slide farther than they are long, and not late."""
    shown: set[int] = field(default_factory=set)
    """In at least one pane."""
    evicted: set[int] = field(default_factory=set)
    """Removed from a window by the evictor."""
    cleaned: set[int] = field(default_factory=set)
    """Among the contents of a window when it was cleaned up."""
    held: set[int] = field(default_factory=set)
    """Among the contents of a window that is open at the end."""
    open_windows: int = 0
    """How many windows are open at the end."""
    timers: int = 0
    """How many timers are set at the end."""

    @property
    def never_shown(self) -> set[int]:
        """Return the accepted records that are in no pane."""
        return self.accepted - self.shown


def run(spec: dict[str, Any], elements: Iterable[dict[str, Any]]) -> Outcome:
    """Run elements through the windows of a spec; return the fate of each record."""
    windows = Windows(spec)
    for at, element in enumerate(elements):
        windows.process(at, element)
    outcome = windows.outcome
    outcome.held = {record.index for one in windows.open for record in one.records}
    outcome.open_windows = len(windows.open)
    outcome.timers = sum(len(timers) for timers in windows.clocks.timers.values())
    return outcome


def windowed(spec: dict[str, Any], elements: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run elements through the windows of a spec; return the panes and late records in order."""
    return run(spec, elements).emissions


class Windows:
    """All open windows, for all keys, and the clocks."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.assigner = spec["assigner"]
        self.evictor = spec["evictor"]
        if self.assigner["type"] == "count_sliding":
            self.evictor = {"type": "count", "n": self.assigner["n"], "after": False}
        self.clocks = Clocks()
        self.trigger, self.purges = made_trigger(self.assigner, spec["trigger"], self.clocks)
        self.lateness: int = spec["lateness"]
        self.late_output: bool = spec["late_output"]
        self.open: list[OpenWindow] = []
        self.outcome = Outcome()
        self.at = 0
        self.cause: dict[str, Any] = {}

    def process(self, at: int, element: dict[str, Any]) -> None:
        """Process one element."""
        self.at = at
        if "wm" in element:
            # A watermark that does not rise is ignored; a rising one takes effect before timers fire, as in
            # case 119.
            if element["wm"] > self.clocks.watermark:
                self.clocks.watermark = element["wm"]
                self.fire_timers(EVENT)
        elif "pt" in element:
            self.clocks.processing_time = element["pt"]
            self.fire_timers(PROCESSING)
        else:
            self.cause = {"cause": "element"}
            self.add(Record(at, element["key"], element["ts"], float(element["v"]), element))

    def add(self, record: Record) -> None:
        """Add a record to those of its windows that are not late, or note its fate otherwise."""
        self.outcome.records.add(record.index)
        for window in assigned(self.assigner, record, self.clocks.processing_time):
            parts = self.touching(record.key, window)
            # Whether a session is late is decided after it is merged, as in case 106.
            whole = cover([window, *(part.window for part in parts)])
            if not self.is_late(whole):
                self.outcome.accepted.add(record.index)
                self.add_to(self.opened(record.key, whole, parts), record)
        if record.index not in self.outcome.accepted:
            self.refuse(record)

    def refuse(self, record: Record) -> None:
        """Emit or drop a record that no window has taken, as in cases 115 and 116."""
        # After the final watermark a record is late whatever the lateness, so the sum is capped.
        behind = min(record.time + self.lateness, FOREVER) <= self.clocks.watermark
        if not (self.assigner["type"] in EVENT_TIME and behind):
            self.outcome.dropped_in_gap.add(record.index)
        elif not self.late_output:
            self.outcome.dropped_late.add(record.index)
        else:
            self.outcome.late.add(record.index)
            self.outcome.emissions.append({"late": {**record.element, "v": record.value}, "at": self.at})

    def add_to(self, one: OpenWindow, record: Record) -> None:
        """Add a record to an open window, and fire it if the trigger says so."""
        one.records.append(record)
        if self.trigger.on_record(one, record):
            self.fire(one)
        cleanup = self.cleanup_time(one.window)
        if cleanup is not None:
            self.clocks.set(self.own_time, one, cleanup)

    # Open windows.

    def touching(self, key: str, window: Window) -> list[OpenWindow]:
        """Return the sessions of a key that touch a new one."""
        if self.assigner["type"] not in SESSIONS:
            return []
        return [one for one in self.open if one.key == key and touch(one.window, window)]

    def opened(self, key: str, window: Window, parts: list[OpenWindow]) -> OpenWindow:
        """Return the open window of a key; if it did not exist, it is created, or replaces the windows that
        it merges.
        """
        found = self.find(key, window)
        if found is not None:
            return found
        records = [record for part in parts for record in part.records]
        new = OpenWindow(key, window, sorted(records, key=lambda record: record.index))
        self.open.append(new)
        if parts:
            self.trigger.on_merge(new, parts)
        for part in parts:
            self.discard(part)
        return new

    def find(self, key: str, window: Window) -> OpenWindow | None:
        """Return the open window of a key, if any."""
        for one in self.open:
            if one.key == key and one.window == window:
                return one
        return None

    def discard(self, one: OpenWindow) -> None:
        """Forget a window, its trigger state and its cleanup timer."""
        self.trigger.clear(one)
        cleanup = self.cleanup_time(one.window)
        if cleanup is not None:
            self.clocks.delete(self.own_time, one, cleanup)
        self.open.remove(one)

    # Time.

    @property
    def own_time(self) -> str:
        """Return the kind of time by which windows end."""
        return EVENT if self.assigner["type"] in EVENT_TIME else PROCESSING

    def is_late(self, window: Window) -> bool:
        """Return whether an event-time window has been cleaned up already, as in cases 101 and 118."""
        if self.assigner["type"] not in EVENT_TIME:
            return False
        return min(window.last + self.lateness, FOREVER) <= self.clocks.watermark

    def cleanup_time(self, window: Window) -> int | None:
        """Return when a window is cleaned up; None means never."""
        if window == GLOBAL:
            return None
        lateness = self.lateness if self.own_time == EVENT else 0
        cleanup = window.last + lateness
        return cleanup if cleanup < FOREVER else None

    def fire_timers(self, kind: str) -> None:
        """Fire the timers that are due, earliest first, including those set meanwhile."""
        for _ in range(MAX_FIRINGS):
            timer = self.clocks.take_due(kind)
            if timer is None:
                return
            self.cause = {"cause": kind, "time": timer.time}
            self.on_timer(kind, timer)
        raise EndlessFiringError(
            f"More than {MAX_FIRINGS} timers fired for element {self.at}. "
            "With this trigger, time must not come so far."
        )

    def on_timer(self, kind: str, timer: Timer) -> None:
        """Fire a window if the trigger says so, and clean it up if it is due."""
        one = self.find(timer.key, timer.window)
        if one is None:
            return
        on_time = self.trigger.on_event_time if kind == EVENT else self.trigger.on_processing_time
        if on_time(one, timer.time):
            self.fire(one)
        if kind == self.own_time and timer.time == self.cleanup_time(one.window):
            self.outcome.cleaned.update(record.index for record in one.records)
            self.discard(one)

    # Panes.

    def fire(self, one: OpenWindow) -> None:
        """Emit a pane if the window has contents, and purge the window if requested."""
        if one.records:
            # A pane may be empty if everything was evicted, but not if there was nothing to evict.
            pane = self.evict(one.records, after=False)
            self.emit(one, pane)
            # Evicted records have left the window for good, as in cases 110 and 111.
            one.records = self.evict(pane, after=True)
        if self.purges:
            one.records = []

    def evict(self, records: list[Record], *, after: bool) -> list[Record]:
        """Return the records that remain before or after a firing."""
        if not records or self.evictor["type"] == "none" or self.evictor["after"] != after:
            return list(records)
        left = kept(self.evictor, records)
        self.outcome.evicted.update(record.index for record in records if record not in left)
        return left

    def emit(self, one: OpenWindow, pane: list[Record]) -> None:
        """Emit a pane."""
        self.outcome.shown.update(record.index for record in pane)
        self.outcome.emissions.append(
            {
                "key": one.key,
                "start": None if one.window == GLOBAL else one.window.start,
                "end": None if one.window == GLOBAL else one.window.end,
                "values": [record.value for record in pane],
                "ts": one.window.last,
                "at": self.at,
                **self.cause,
                "seq": [record.index for record in pane],
            }
        )
