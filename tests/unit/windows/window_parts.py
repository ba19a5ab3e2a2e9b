"""Assigners, evictors and triggers of the reference model of windows.

The specs are those of the cases of windowing. A comment names a case that demonstrates its statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "EVENT",
    "EVENT_TIME",
    "FOREVER",
    "GLOBAL",
    "PROCESSING",
    "SESSIONS",
    "Clocks",
    "OpenWindow",
    "Record",
    "Timer",
    "Trigger",
    "Window",
    "assigned",
    "cover",
    "kept",
    "made_trigger",
    "touch",
]

FOREVER = 2**63 - 1
EVENT = "wm_timer"
PROCESSING = "pt_timer"

SESSIONS = {"session", "dynamic_session", "pt_session"}
EVENT_TIME = {"tumbling", "sliding", "cumulative", "session", "dynamic_session"}
PROCESSING_TIME = {"pt_tumbling", "pt_sliding", "pt_session"}


@dataclass(frozen=True)
class Record:
    """A record, with its index among the elements."""

    index: int
    key: str
    time: int
    value: float
    element: dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The instants from `start` up to, but not including, `end`."""

    start: int
    end: int

    @property
    def last(self) -> int:
        """The last instant."""
        return self.end - 1


GLOBAL = Window(-FOREVER - 1, FOREVER + 1)
"""The window of all time."""


@dataclass(eq=False)
class OpenWindow:
    """A window of a key with its contents, and what a trigger remembers of it."""

    key: str
    window: Window
    records: list[Record] = field(default_factory=list)
    count: int = 0
    compared: Record | None = None
    next_firing: int | None = None


@dataclass(frozen=True)
class Timer:
    """A time at which a window of a key is processed."""

    time: int
    key: str
    window: Window


@dataclass
class Clocks:
    """The watermark, processing time, and the timers of both."""

    watermark: int = -(2**63)
    processing_time: int = 0
    timers: dict[str, list[Timer]] = field(default_factory=lambda: {EVENT: [], PROCESSING: []})

    def set(self, kind: str, one: OpenWindow, time: int) -> None:
        """Set a timer, unless an equal one exists."""
        timer = Timer(time, one.key, one.window)
        if timer not in self.timers[kind]:
            self.timers[kind].append(timer)

    def delete(self, kind: str, one: OpenWindow, time: int) -> None:
        """Delete a timer, if it exists."""
        timer = Timer(time, one.key, one.window)
        if timer in self.timers[kind]:
            self.timers[kind].remove(timer)

    def take_due(self, kind: str) -> Timer | None:
        """Remove and return the earliest timer that is due."""
        now = self.watermark if kind == EVENT else self.processing_time
        due = [timer for timer in self.timers[kind] if timer.time <= now]
        if not due:
            return None
        earliest = min(due, key=lambda timer: timer.time)
        self.timers[kind].remove(earliest)
        return earliest


# Assigners.


def assigned(assigner: dict[str, Any], record: Record, processing_time: int) -> list[Window]:
    """Return the windows of a record, in the order in which they take it."""
    kind = assigner["type"]
    if kind in {"global", "count_tumbling", "count_sliding"}:
        return [GLOBAL]
    time = processing_time if kind in PROCESSING_TIME else record.time
    if kind in SESSIONS:
        gap = record.element["gap"] if kind == "dynamic_session" else assigner["gap"]
        if gap <= 0:
            raise ValueError(f"The gap of a session must be positive; it is {gap}.")
        return [Window(time, time + gap)]
    size, offset = assigner["size"], assigner.get("offset", 0)
    if kind == "cumulative":
        start = slice_start(time, size, offset)
        ends = range(start + assigner["step"], start + size + 1, assigner["step"])
        return [Window(start, end) for end in ends if end > time]
    # The latest window comes first. A slide longer than the size leaves gaps without a window, as in case 116.
    slide = assigner.get("slide", size)
    starts = range(slice_start(time, slide, offset), time - size, -slide)
    return [Window(start, start + size) for start in starts]


def slice_start(time: int, length: int, offset: int) -> int:
    """Return the start of a time's slice; the division rounds down for negative times too, as in case 048."""
    return (time - offset) // length * length + offset


def touch(one: Window, other: Window) -> bool:
    """Return whether windows overlap or touch, as in case 104."""
    return one.start <= other.end and other.start <= one.end


def cover(windows: Sequence[Window]) -> Window:
    """Return the smallest window that covers all of these."""
    return Window(min(w.start for w in windows), max(w.end for w in windows))


# Evictors.


def kept(evictor: dict[str, Any], records: list[Record]) -> list[Record]:
    """Return what an evictor leaves of the contents of a window, which are in order of arrival and not empty.

    What is exactly at the limit is evicted, as in cases 113 and 114.
    """
    kind = evictor["type"]
    if kind == "count":
        return records[max(0, len(records) - evictor["n"]) :]
    if kind == "time":
        cutoff = max(record.time for record in records) - evictor["ms"]
        return [record for record in records if record.time > cutoff]
    if kind == "delta":
        last = records[-1]
        return [record for record in records if delta(record, last) < evictor["threshold"]]
    raise ValueError(f"There is no evictor {kind!r}.")


def delta(one: Record, other: Record) -> float:
    """Return the distance between two records."""
    return abs(other.value - one.value)


# Triggers.


class Trigger:
    """Never fires. Every method that returns a bool returns whether the window fires."""

    def __init__(self, clocks: Clocks, spec: dict[str, Any]) -> None:
        self.clocks = clocks
        self.spec = spec

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        """Handle a record that was added to a window."""
        return False

    def on_event_time(self, one: OpenWindow, time: int) -> bool:
        """Handle a timer that the watermark has reached."""
        return False

    def on_processing_time(self, one: OpenWindow, time: int) -> bool:
        """Handle a timer that processing time has reached."""
        return False

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        """Handle a window that has replaced others and has their contents."""

    def clear(self, one: OpenWindow) -> None:
        """Handle a window that is cleaned up, or merged into another one."""


class EventTime(Trigger):
    """Fires when the watermark reaches the last instant, and then for each record, as in cases 100 and 101."""

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        if one.window.last <= self.clocks.watermark:
            return True
        self.clocks.set(EVENT, one, one.window.last)
        return False

    def on_event_time(self, one: OpenWindow, time: int) -> bool:
        return time == one.window.last

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        if merged.window.last > self.clocks.watermark:
            self.clocks.set(EVENT, merged, merged.window.last)

    def clear(self, one: OpenWindow) -> None:
        self.clocks.delete(EVENT, one, one.window.last)


class EndOfStream(Trigger):
    """Fires at the final watermark."""

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        self.clocks.set(EVENT, one, one.window.last)
        return False

    def on_event_time(self, one: OpenWindow, time: int) -> bool:
        return time == one.window.last


class ProcessingTime(Trigger):
    """Fires when processing time reaches the last instant."""

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        self.clocks.set(PROCESSING, one, one.window.last)
        return False

    def on_processing_time(self, one: OpenWindow, time: int) -> bool:
        return True

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        if merged.window.last > self.clocks.processing_time:
            self.clocks.set(PROCESSING, merged, merged.window.last)

    def clear(self, one: OpenWindow) -> None:
        self.clocks.delete(PROCESSING, one, one.window.last)


class Count(Trigger):
    """Fires when n records have arrived since the last firing, as in cases 008 and 102."""

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        one.count += 1
        if one.count < self.spec["n"]:
            return False
        one.count = 0
        return True

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        merged.count = sum(part.count for part in parts)


class Delta(Trigger):
    """Fires when a record is farther than a threshold from that of the last firing, as in case 112."""

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        if one.compared is None:
            one.compared = record
            return False
        if delta(one.compared, record) <= self.spec["threshold"]:
            return False
        one.compared = record
        return True

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        raise ValueError(
            "A delta trigger cannot be used on sessions, for there is no way to merge what it remembers."
        )


class Continuous(Trigger):
    """Fires at every multiple of an interval, up to the last instant."""

    kind = ""

    def plan(self, one: OpenWindow, time: int) -> None:
        """Schedule a firing one interval after a time, but not after the last instant."""
        one.next_firing = min(time + self.spec["interval"], one.window.last)
        self.clocks.set(self.kind, one, one.next_firing)

    def on_timer(self, one: OpenWindow, time: int) -> bool:
        """Fire if this is the scheduled time, and schedule the next firing."""
        if one.next_firing != time:
            return False
        self.plan(one, time)
        return True

    def on_merge(self, merged: OpenWindow, parts: list[OpenWindow]) -> None:
        # The earliest of the next firings wins, even if it is already due, as in case 060.
        planned = [part.next_firing for part in parts if part.next_firing is not None]
        if planned:
            merged.next_firing = min(planned)
            self.clocks.set(self.kind, merged, merged.next_firing)

    def clear(self, one: OpenWindow) -> None:
        if one.next_firing is not None:
            self.clocks.delete(self.kind, one, one.next_firing)
            one.next_firing = None


class ContinuousEventTime(Continuous):
    """By the watermark; always fires at the last instant, and then for each record, as in case 109."""

    kind = EVENT

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        if one.window.last <= self.clocks.watermark:
            return True
        self.clocks.set(EVENT, one, one.window.last)
        if one.next_firing is None:
            self.plan(one, rounded_to_zero(record.time, self.spec["interval"]))
        return False

    def on_event_time(self, one: OpenWindow, time: int) -> bool:
        return time == one.window.last or self.on_timer(one, time)


class ContinuousProcessingTime(Continuous):
    """By processing time; the watermark has no effect."""

    kind = PROCESSING

    def on_record(self, one: OpenWindow, record: Record) -> bool:
        if one.next_firing is None:
            self.plan(one, rounded_to_zero(self.clocks.processing_time, self.spec["interval"]))
        return False

    def on_processing_time(self, one: OpenWindow, time: int) -> bool:
        return self.on_timer(one, time)


def rounded_to_zero(time: int, interval: int) -> int:
    """Return a multiple of an interval; negative times are rounded up, as by Java's division, as in case 136."""
    below = abs(time) // interval * interval
    return below if time >= 0 else -below


TRIGGERS = {
    "never": Trigger,
    "end_of_stream": EndOfStream,
    "event_time": EventTime,
    "processing_time": ProcessingTime,
    "count": Count,
    "delta": Delta,
    "continuous_event_time": ContinuousEventTime,
    "continuous_processing_time": ContinuousProcessingTime,
}


def made_trigger(assigner: dict[str, Any], spec: dict[str, Any], clocks: Clocks) -> tuple[Trigger, bool]:
    """Return the trigger that a spec describes, and whether windows are purged when it fires."""
    if spec["type"] == "default":
        spec = default_trigger(assigner)
    purges = spec["type"] == "purging"
    if purges:
        spec = spec["of"]
    return TRIGGERS[spec["type"]](clocks, spec), purges


def default_trigger(assigner: dict[str, Any]) -> dict[str, Any]:
    """Return the default trigger of windows."""
    kind = assigner["type"]
    if kind == "count_tumbling":
        return {"type": "purging", "of": {"type": "count", "n": assigner["n"]}}
    if kind == "count_sliding":
        return {"type": "count", "n": assigner["slide"]}
    if kind == "global":
        return {"type": "end_of_stream" if assigner.get("end_of_stream") else "never"}
    return {"type": "event_time" if kind in EVENT_TIME else "processing_time"}
