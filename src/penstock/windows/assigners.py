"""Window assigners: choose the windows that a record belongs to."""
# Overriding methods are as the base class declares them.
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
"""How many starts an assigner remembers the windows of; enough for all that are open at a time."""


class WindowAssigner:
    """Which windows a record belongs to. Derive your own from it.

    >>> class WholeDays(WindowAssigner):
    ...     def assign(self, record, time_ms):
    ...         start = time_ms - time_ms % 86_400_000
    ...         return [Window(start, start + 86_400_000)]
    >>> WholeDays().assign(None, 90_000_000)
    [Window(start=86400000, end=172800000)]

    Attributes:
        is_event_time: whether windows are of event time, so that records can be late and the watermark cleans up;
            else they are of processing time.
        merges: whether windows of a key become one where they overlap or touch, as sessions do.

    """

    is_event_time: bool = True
    merges: bool = False

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        """The windows of a record, at its event time or at the time of the clock, in milliseconds since 1970.

        A function of its arguments and of parameters.
        """
        raise NotImplementedError

    def default_trigger(self) -> Trigger:
        """The trigger of windows that are given none."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """The evictor of windows that are given none."""
        return None

    @property
    def version(self) -> int:
        """How often the parameters have changed."""
        return 0

    def fits(self, window: Window) -> bool:
        """Whether an open window is one that `assign` gives, and not one of parameters from before."""
        return True

    def beside(self, assigned: Sequence[Window], others: Sequence[Window], time_ms: int) -> Sequence[Window]:
        """The windows of a record where windows are open that no longer fit: its own, and those that contain its time.

        So windows that were open when parameters changed go on until their end.
        """
        return [*assigned, *(window for window in others if window.start <= time_ms < window.end)]


class GridWindows(WindowAssigner):
    """What windows have in common that lie on a grid of times; those of a start are made once."""

    def __init__(self, time: Time) -> None:
        self.is_event_time = _is_event_time(time, type(self).__name__)
        self._cache: dict[Any, tuple[Window, ...]] = {}

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        """As `assign`, of many times: a row for each with the starts and the ends; equal ones are of no window."""
        raise NotImplementedError

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        """As `fits`, of many windows."""
        raise NotImplementedError

    def _remembered(self, key: Any, windows: tuple[Window, ...]) -> tuple[Window, ...]:
        if len(self._cache) >= _CACHED:
            self._cache.clear()
        self._cache[key] = windows
        return windows


class TumblingWindows(GridWindows):
    """Windows of one size, one after the other: [00:00, 00:05), [00:05, 00:10) and so on.

    >>> TumblingWindows("5s").assign(None, 12_345)
    (Window(start=10000, end=15000),)

    When `size` is a `Parameter` that changes, windows that are open stay as they are, and records whose time they
    contain go on coming to them. A window of the new size that would overlap one is cut at its bounds, so that windows
    of a key never overlap.

    Args:
        size: a timedelta or a text like "5s", "500ms", "1m", "2h", "1d".
        offset: how far starts are behind multiples of the size since 1970 in UTC: timedelta(hours=-2) for days of
            UTC+2.
        time: "event", or "processing" for the time of the clock.

    """

    def __init__(self, size: Duration | Parameter, offset: Duration = "0s", time: Time = "event") -> None:
        super().__init__(time)
        self._size = Parameter.duration(size, "the size of TumblingWindows")
        self._offset_ms = _offset(offset, self._size, "TumblingWindows")

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        size = self._size.value
        start = time_ms - (time_ms - self._offset_ms) % size
        key = (start, size)
        return self._cache.get(key) or self._remembered(key, (Window(start, start + size),))

    @property
    def version(self) -> int:
        return self._size.version

    def fits(self, window: Window) -> bool:
        size: int = self._size.value
        return window.end - window.start == size and (window.start - self._offset_ms) % size == 0

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        size = self._size.value
        starts = (times_ms - (times_ms - self._offset_ms) % size).reshape(-1, 1)
        return starts, starts + size

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        size = self._size.value
        found: Mask = (ends - starts == size) & ((starts - self._offset_ms) % size == 0)
        return found

    def beside(self, assigned: Sequence[Window], others: Sequence[Window], time_ms: int) -> Sequence[Window]:
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
    """Windows of one size that start every `slide`, so that a record belongs to several; the latest one comes first.

    >>> SlidingWindows("10s", "5s").assign(None, 12_345)
    (Window(start=10000, end=20000), Window(start=5000, end=15000))

    With a slide above the size there are gaps, and records in them belong to no window. When parameters change, windows
    that are open go on beside those of the new ones.

    Args:
        size: a timedelta or a text like "5s".
        slide: likewise; from one start to the next.
        offset: how far starts are behind multiples of the slide since 1970 in UTC.
        time: "event", or "processing" for the time of the clock.

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
        # As many starts lie in the size before the time.
        count = (size - behind + slide - 1) // slide
        key = (time_ms - behind, count, size, slide)
        found = self._cache.get(key)
        if found is None:
            starts = range(time_ms - behind, time_ms - behind - count * slide, -slide)
            found = self._remembered(key, tuple(Window(start, start + size) for start in starts))
        return found

    @property
    def version(self) -> int:
        return self._size.version + self._slide.version

    def fits(self, window: Window) -> bool:
        size: int = self._size.value
        slide: int = self._slide.value
        return window.end - window.start == size and (window.start - self._offset_ms) % slide == 0

    def columns(self, times_ms: Ints) -> tuple[Ints, Ints]:
        size, slide = self._size.value, self._slide.value
        latest = (times_ms - (times_ms - self._offset_ms) % slide).reshape(-1, 1)
        starts = latest - slide * np.arange(-(-size // slide))
        # A start that is the size or more behind has no window for the time.
        is_there = starts > times_ms.reshape(-1, 1) - size
        return starts, np.where(is_there, starts + size, starts)

    def fit(self, starts: Ints, ends: Ints) -> Mask:
        found: Mask = (ends - starts == self._size.value) & (
            (starts - self._offset_ms) % self._slide.value == 0
        )
        return found


class CumulativeWindows(GridWindows):
    """Windows that grow by `step` up to `size`, and then begin anew; the shortest one comes first.

    With a day and an hour: [00:00, 01:00), [00:00, 02:00) up to [00:00, 24:00). A record belongs to all that contain
    its time.

    >>> CumulativeWindows(step="5s", size="15s").assign(None, 21_000)
    (Window(start=15000, end=25000), Window(start=15000, end=30000))

    When parameters change, windows that are open go on beside those of the new ones; where the step does not divide the
    size any more, the last window has the size all the same.

    Args:
        step: a timedelta or a text like "5s".
        size: likewise; a multiple of the step.
        offset: how far starts are behind multiples of the size since 1970 in UTC.

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
            found = self._remembered(key, tuple(Window(start, end) for end in ends))
        return found

    @property
    def version(self) -> int:
        return self._step.version + self._size.version

    def fits(self, window: Window) -> bool:
        length = window.end - window.start
        size: int = self._size.value
        if (window.start - self._offset_ms) % size:
            return False
        return length == size or (length < size and length % self._step.value == 0)

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
    """Windows that last as long as records come: a session ends when there is none for `gap`.

    A record that lies between two sessions, at most the gap away from each, makes them one. When the gap changes, it
    counts for the records that come.

    >>> SessionWindows("30s").assign(None, 5_000)
    (Window(start=5000, end=35000),)

    Args:
        gap: a timedelta or a text like "30s", or a function of the record that gives one; then a session lasts until
            the gap of each of its records is over.
        time: "event", or "processing" for the time of the clock.

    """

    merges = True

    def __init__(self, gap: Duration | Parameter | Callable[[Any], Duration], time: Time = "event") -> None:
        self.is_event_time = _is_event_time(time, "SessionWindows")
        self._gap_of: Callable[[Any], Duration] | None = None
        if callable(gap):
            self._gap_of = gap
        else:
            self._gap = Parameter.duration(gap, "the gap of SessionWindows")

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        if self._gap_of is None:
            return (Window(time_ms, time_ms + self._gap.value),)
        try:
            gap_ms = milliseconds(self._gap_of(record), "the gap of a record's session", least_ms=1)
        except JobDefinitionError as e:
            # This is about a record, not about the job.
            raise ValueError(str(e)) from None
        return (Window(time_ms, time_ms + gap_ms),)


class GlobalWindows(WindowAssigner):
    """One window for all records of a key, which has no end.

    It fires by its trigger alone; nothing is ever late, and nothing is cleaned up. With an `EventTimeTrigger` it fires
    when the stream has ended.
    """

    is_event_time = False

    def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
        return _GLOBAL_ONLY

    def default_trigger(self) -> Trigger:
        return NeverTrigger()


class CountWindows(GlobalWindows):
    """Windows of a number of records of a key, in the order in which they come.

    Without `slide` a window fires at its last record, and the next one begins; one that is incomplete never fires. With
    it, a window of the last `count` records fires at each `slide`-th record; the first ones have fewer.

    A trigger or an evictor that is given takes the place of these.
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
    """An offset in milliseconds, which is less than from one start to the next."""
    offset_ms = milliseconds(given, f"the offset of {what}", least_ms=-grid.value)
    if abs(offset_ms) >= grid.value:
        raise JobDefinitionError(
            f"The offset of {what} is {given!r}; it must be less than {grid.value} ms, from one start to the next."
        )
    return offset_ms
