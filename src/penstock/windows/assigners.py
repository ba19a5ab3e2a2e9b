"""Window assigners: choose the windows that a record belongs to."""
# Overriding methods are documented in the base class.
# ruff: noqa: ARG002, D102

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from penstock.base.durations import Duration, milliseconds
from penstock.errors import JobDefinitionError
from penstock.windows.evictors import CountEvictor, Evictor
from penstock.windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from penstock.windows.window import GLOBAL, Window
from penstock.windows.window_parameters import Parameter

__all__ = [
    "CountWindows",
    "CumulativeWindows",
    "GlobalWindows",
    "GridWindows",
    "SessionWindows",
    "SlidingWindows",
    "TumblingWindows",
    "WindowAssigner",
]

Time = Literal["event", "processing"]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_CACHED: Final = 4096
"""The number of starts whose windows an assigner caches; enough for all windows open at a time."""


class WindowAssigner:
    """A window assigner: chooses the windows that a record belongs to. Derive your own from it.

    >>> class WholeDays(WindowAssigner):
    ...     def assign(self, record, time_ms):
    ...         start = time_ms - time_ms % 86_400_000
    ...         return [Window(start, start + 86_400_000)]
    >>> WholeDays().assign(None, 90_000_000)
    [Window(start=86400000, end=172800000)]

    Attributes:
        is_event_time: whether these are event-time windows, in which records can be late and the watermark cleans up;
            else they are processing-time windows.
        merges: whether windows of a key that overlap or touch are merged, like sessions.

    """

    is_event_time: bool = True
    merges: bool = False

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        """Return the windows of a record at `time_ms`: its event time or processing time, in milliseconds since 1970.

        The result must depend only on the arguments and on parameters.
        """
        raise NotImplementedError

    def default_trigger(self) -> Trigger:
        """Return the trigger to use if the user sets none."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """Return the evictor to use if the user sets none, or None."""
        return None

    @property
    def version(self) -> int:
        """The number of changes of the parameters."""
        return 0

    def fits(self, window: Window) -> bool:
        """Return whether an open window is one that `assign` returns now, not one of earlier parameters."""
        return True

    def assign_with_others(
        self, assigned: Sequence[Window], others: Sequence[Window], time_ms: int
    ) -> Sequence[Window]:
        """Return the windows of a record when `others` are open that no longer fit.

        These are the `assigned` ones and the others that contain its time. So windows that were open when the
        parameters changed still receive records until their end.
        """
        return [*assigned, *(window for window in others if window.start <= time_ms < window.end)]


class GridWindows(WindowAssigner):
    """The common base of windows on a fixed time grid; caches the windows of each start."""

    def __init__(self, time: Time) -> None:
        self.is_event_time = _is_event_time(time, type(self).__name__)
        self._cache: dict[Any, tuple[Window, ...]] = {}

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        """Assign many times at once: return a row per time with starts and ends; where they are equal, no window."""
        raise NotImplementedError

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        """Return which of many windows fit; see `fits`. It must also work for the bounds of one window."""
        raise NotImplementedError

    def fits(self, window: Window) -> bool:
        return bool(self.fit(*window))  # type: ignore[arg-type]  # the same operators apply to plain integers

    def _remember(self, key: Any, windows: tuple[Window, ...]) -> tuple[Window, ...]:
        if len(self._cache) >= _CACHED:
            self._cache.clear()
        self._cache[key] = windows
        return windows


class TumblingWindows(GridWindows):
    """Windows of a fixed size that do not overlap: [00:00, 00:05), [00:05, 00:10) and so on.

    >>> TumblingWindows("5s").assign(None, 12_345)
    (Window(start=10000, end=15000),)

    When `size` is a `Parameter` that changes, open windows keep their bounds and still receive the records whose time
    they contain. A window of the new size that would overlap an open one is cut at its bounds, so windows of a key
    never overlap.

    Args:
        size: a timedelta or a string like "5s", "500ms", "1m", "2h", "1d".
        offset: how far starts are after multiples of the size since 1970 in UTC: timedelta(hours=-2) for days in
            UTC+2.
        time: "event" or "processing", for event-time or processing-time windows.

    """

    def __init__(self, size: Duration | Parameter, offset: Duration = "0s", time: Time = "event") -> None:
        super().__init__(time)
        self._size = Parameter.duration(size, "the size of TumblingWindows")
        self._offset_ms = _offset(offset, self._size, "TumblingWindows")

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        size = self._size.value
        start = time_ms - (time_ms - self._offset_ms) % size
        key = (start, size)
        return self._cache.get(key) or self._remember(key, (Window(start, start + size),))

    @property
    def version(self) -> int:
        return self._size.version

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        size = self._size.value
        starts = (times_ms - (times_ms - self._offset_ms) % size).reshape(-1, 1)
        return starts, starts + size

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        size = self._size.value
        found: Mask = (ends - starts == size) & ((starts - self._offset_ms) % size == 0)
        return found

    def assign_with_others(
        self, assigned: Sequence[Window], others: Sequence[Window], time_ms: int
    ) -> Sequence[Window]:
        ((start, end),) = assigned
        for other in others:
            if other.start <= time_ms < other.end:
                return (other,)
            if other.end <= time_ms:
                start = max(start, other.end)
            else:
                end = min(end, other.start)
        return (Window(start, end),)


class SlidingWindows(GridWindows):
    """Windows of a fixed size that start every `slide`, so a record belongs to several; the latest comes first.

    >>> SlidingWindows("10s", "5s").assign(None, 12_345)
    (Window(start=10000, end=20000), Window(start=5000, end=15000))

    If the slide is larger than the size there are gaps, and records in them belong to no window. When parameters
    change, open windows continue next to the new ones.

    Args:
        size: a timedelta or a string like "5s".
        slide: the time from one start to the next, given like `size`.
        offset: how far starts are after multiples of the slide since 1970 in UTC.
        time: "event" or "processing", for event-time or processing-time windows.

    """

    def __init__(
        self,
        size: Duration | Parameter,
        slide: Duration | Parameter,
        offset: Duration = "0s",
        time: Time = "event",
    ) -> None:
        super().__init__(time)
        self._size = Parameter.duration(size, "the size of SlidingWindows")
        self._slide = Parameter.duration(slide, "the slide of SlidingWindows")
        self._offset_ms = _offset(offset, self._slide, "SlidingWindows")

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        size, slide = self._size.value, self._slide.value
        behind = (time_ms - self._offset_ms) % slide
        # The number of starts within `size` before the time.
        count = (size - behind + slide - 1) // slide
        key = (time_ms - behind, count, size, slide)
        found = self._cache.get(key)
        if found is None:
            starts = range(time_ms - behind, time_ms - behind - count * slide, -slide)
            found = self._remember(key, tuple(Window(start, start + size) for start in starts))
        return found

    @property
    def version(self) -> int:
        return self._size.version + self._slide.version

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        size, slide = self._size.value, self._slide.value
        latest = (times_ms - (times_ms - self._offset_ms) % slide).reshape(-1, 1)
        starts = latest - slide * np.arange(-(-size // slide))
        # A window that starts `size` or more before the time does not contain it.
        is_there = starts > times_ms.reshape(-1, 1) - size
        return starts, np.where(is_there, starts + size, starts)

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        found: Mask = (ends - starts == self._size.value) & (
            (starts - self._offset_ms) % self._slide.value == 0
        )
        return found


class CumulativeWindows(GridWindows):
    """Windows that grow by `step` up to `size`, and then start over; the shortest comes first.

    With a size of a day and a step of an hour: [00:00, 01:00), [00:00, 02:00) up to [00:00, 24:00). A record belongs to
    all windows that contain its time.

    >>> CumulativeWindows(step="5s", size="15s").assign(None, 21_000)
    (Window(start=15000, end=25000), Window(start=15000, end=30000))

    When parameters change, open windows continue next to the new ones. If the step no longer divides the size, the last
    window still has the full size.

    Args:
        step: a timedelta or a string like "5s".
        size: a multiple of the step, given like `step`.
        offset: how far starts are after multiples of the size since 1970 in UTC.

    """

    def __init__(
        self, step: Duration | Parameter, size: Duration | Parameter, offset: Duration = "0s"
    ) -> None:
        super().__init__("event")
        self._step = Parameter.duration(step, "the step of CumulativeWindows")
        self._size = Parameter.duration(size, "the size of CumulativeWindows")
        self._offset_ms = _offset(offset, self._size, "CumulativeWindows")
        if self._size.value % self._step.value:
            raise JobDefinitionError(
                f"The size of CumulativeWindows ({self._size.value} ms) is not a multiple of their step "
                f"({self._step.value} ms)."
            )

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        step, size = self._step.value, self._size.value
        within = (time_ms - self._offset_ms) % size
        start, steps = time_ms - within, within // step
        key = (start, steps, step, size)
        found = self._cache.get(key)
        if found is None:
            ends = [*range(start + (steps + 1) * step, start + size, step), start + size]
            found = self._remember(key, tuple(Window(start, end) for end in ends))
        return found

    @property
    def version(self) -> int:
        return self._step.version + self._size.version

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        step, size = self._step.value, self._size.value
        within = (times_ms - self._offset_ms) % size
        starts = np.repeat((times_ms - within).reshape(-1, 1), -(-size // step), axis=1)
        ends = np.minimum(starts + step * np.arange(1, starts.shape[1] + 1), starts + size)
        return starts, np.where(ends > times_ms.reshape(-1, 1), ends, starts)

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        lengths, size = ends - starts, self._size.value
        found: Mask = ((starts - self._offset_ms) % size == 0) & (
            (lengths == size) | ((lengths < size) & (lengths % self._step.value == 0))
        )
        return found


class SessionWindows(WindowAssigner):
    """Windows that last as long as records arrive: a session ends after `gap` without a record.

    A record between two sessions, at most the gap away from each, merges them. A changed gap applies to the records
    that come after.

    >>> SessionWindows("30s").assign(None, 5_000)
    (Window(start=5000, end=35000),)

    Args:
        gap: a timedelta or a string like "30s", or a function of the record that returns one; a session then lasts
            until the gap of each of its records is over.
        time: "event" or "processing", for event-time or processing-time windows.

    """

    merges = True

    def __init__(self, gap: Duration | Parameter | Callable[[Any], Duration], time: Time = "event") -> None:
        self.is_event_time = _is_event_time(time, "SessionWindows")
        self._gap_of: Callable[[Any], Duration] | None = None
        if callable(gap):
            self._gap_of = gap
        else:
            self._gap = Parameter.duration(gap, "the gap of SessionWindows")

    @property
    def gap_ms(self) -> int | None:
        """The gap, in milliseconds; None if it depends on the record."""
        return self._gap.value if self._gap_of is None else None

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        if self._gap_of is None:
            return (Window(time_ms, time_ms + self._gap.value),)
        try:
            gap_ms = milliseconds(self._gap_of(record), "the gap of a record's session", min_ms=1)
        except JobDefinitionError as e:
            # The record is at fault, not the job.
            raise ValueError(str(e)) from None
        return (Window(time_ms, time_ms + gap_ms),)


class GlobalWindows(WindowAssigner):
    """A single window for all records of a key, without an end.

    Only its trigger fires it. Records are never late, and nothing is cleaned up. With an `EventTimeTrigger` it fires
    when the stream has ended.
    """

    is_event_time = False

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        return _GLOBAL_ONLY

    def default_trigger(self) -> Trigger:
        return NeverTrigger()


class CountWindows(GlobalWindows):
    """Windows of `count` records of a key, in the order of arrival.

    Without `slide`, a window fires at its last record and the next one begins; an incomplete window never fires. With
    `slide`, a window of the last `count` records fires at every `slide`-th record; the first windows have fewer.

    Your own trigger or evictor replaces this behaviour.
    """

    def __init__(self, count: int | Parameter, slide: int | Parameter | None = None) -> None:
        self._count = Parameter.count(count, "the count of CountWindows")
        self._slide = None if slide is None else Parameter.count(slide, "the slide of CountWindows")

    def default_trigger(self) -> Trigger:
        if self._slide is None:
            return PurgingTrigger(CountTrigger(self._count))
        return CountTrigger(self._slide)

    def default_evictor(self) -> Evictor | None:
        return None if self._slide is None else CountEvictor(self._count)


_GLOBAL_ONLY: Final = (GLOBAL,)


def _is_event_time(time: Time, what: str) -> bool:
    if time not in typing.get_args(Time):
        raise JobDefinitionError(f"{what} have time={time!r}; it is 'event' or 'processing'.")
    return time == "event"


def _offset(given: Duration, grid: Parameter, what: str) -> int:
    """Return an offset in milliseconds. Raises JobDefinitionError unless it is less than from one start to the next."""
    offset_ms = milliseconds(given, f"the offset of {what}", min_ms=-grid.value)
    if abs(offset_ms) >= grid.value:
        raise JobDefinitionError(
            f"The offset of {what} is {given!r}; it must be less than {grid.value} ms, from one start to the next."
        )
    return offset_ms
