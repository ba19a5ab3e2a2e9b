"""The open windows of a key: their contents, their timers, and the way back when a function raises."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from penstock.windows.window import MIN_TIME, Window

__all__ = ["OpenWindows", "Pane", "WindowTimer"]

WindowTimer = tuple[int, Window]
"""When a window is to be asked again, and which."""


class Pane:
    """What is kept of an open window.

    Attributes:
        contents: a list of (time in milliseconds, record), in the order in which they came, or what they were folded
            into; None when there is nothing: all was purged or evicted.
        count: the number of records in the contents.
        trigger_state: what the trigger keeps.
        window_state: what the window function keeps.
        cleanup_ms: when the window is cleaned up; the end of time when it never is.
        event_timers: times of the window's timers by event time, in no order, each once.
        processing_timers: likewise by processing time.

    """

    __slots__ = (
        "cleanup_ms",
        "contents",
        "count",
        "event_timers",
        "processing_timers",
        "trigger_state",
        "window_state",
    )

    def __init__(self) -> None:
        self.contents: Any = None
        self.count = 0
        self.trigger_state: Any = None
        self.window_state: Any = None
        # The operator says when, as it opens the window.
        self.cleanup_ms = MIN_TIME
        # Tuples, so that the way back is the tuple from before.
        self.event_timers: tuple[int, ...] = ()
        self.processing_timers: tuple[int, ...] = ()

    def put_back(self, contents: Any, count: int) -> None:
        """Have the contents from before."""
        self.contents = contents
        self.count = count

    def drop_last(self) -> None:
        """Take the record back that came last."""
        self.contents.pop()
        self.count -= 1

    def holds_nothing(self) -> bool:
        """Whether there is no more to know of the window than that it was there."""
        return (
            self.contents is None
            and self.trigger_state is None
            and self.window_state is None
            and not self.event_timers
            and not self.processing_timers
        )


class OpenWindows:
    """The open windows of one key.

    Changes are written into the journal as the calls that take them back. `commit` forgets them; whoever keeps windows
    calls it when a record or a timer is done with, `roll_back` when it cannot be: `WindowOperator` does the latter by
    itself when a function raises.

    Attributes:
        panes: what is kept of each window.
        event_timers: the timers by event time, the earliest first, each once.
        processing_timers: likewise by processing time.
        in_order: the windows by their start, where windows merge; None until that is asked for.
        journal: calls that take the changes back since the last commit, in the order of the changes: a function and its
            arguments.
        fitting: the version of the assigner that all windows are known to fit; None when it is unknown.

    """

    __slots__ = ("event_timers", "fitting", "in_order", "journal", "panes", "processing_timers")

    def __init__(self) -> None:
        self.panes: dict[Window, Pane] = {}
        self.event_timers: list[WindowTimer] = []
        self.processing_timers: list[WindowTimer] = []
        self.in_order: list[Window] | None = None
        self.fitting: int | None = None
        self.journal: list[tuple[Any, ...]] = []

    @classmethod
    def of(cls, panes: Iterable[tuple[Window, Pane]]) -> OpenWindows:
        """Windows as they were stored; the timers are those that the panes name."""
        windows = cls()
        windows.panes = dict(panes)
        for window, pane in windows.panes.items():
            windows.event_timers.extend((time_ms, window) for time_ms in pane.event_timers)
            windows.processing_timers.extend((time_ms, window) for time_ms in pane.processing_timers)
        windows.event_timers.sort()
        windows.processing_timers.sort()
        return windows

    def commit(self) -> None:
        """Let all changes stand."""
        self.journal.clear()

    def roll_back(self, mark: int = 0) -> None:
        """Take all changes back since the journal had that many entries; without a number, since the last commit."""
        journal = self.journal
        while len(journal) > mark:
            undo, *arguments = journal.pop()
            undo(*arguments)

    def open(self, window: Window) -> Pane:
        """Open a window that is not."""
        pane = self.panes[window] = Pane()
        self.journal.append((self.panes.pop, window))
        if self.in_order is not None:
            index = bisect_left(self.in_order, window)
            self._replace_in_order(index, index, [window])
        return pane

    def close(self, window: Window) -> None:
        """Forget a window, with its timers."""
        pane = self.panes.pop(window)
        self.journal.append((self.panes.__setitem__, window, pane))
        for time_ms in pane.event_timers:
            self._remove(self.event_timers, (time_ms, window))
        for time_ms in pane.processing_timers:
            self._remove(self.processing_timers, (time_ms, window))
        if self.in_order is not None:
            index = bisect_left(self.in_order, window)
            self._replace_in_order(index, index + 1, [])

    def touching(self, window: Window) -> list[Window]:
        """The open windows that share a time with a window or a bound, by their start, where no two of them do."""
        in_order = self._windows_in_order()
        first = last = bisect_left(in_order, window)
        if first and in_order[first - 1].end >= window.start:
            first -= 1
        while last < len(in_order) and in_order[last].start <= window.end:
            last += 1
        return in_order[first:last]

    def add_event_timer(self, time_ms: int, window: Window, pane: Pane) -> None:
        """Register a timer of a window by event time, unless it is."""
        if time_ms not in pane.event_timers:
            self.journal.append((setattr, pane, "event_timers", pane.event_timers))
            pane.event_timers = (*pane.event_timers, time_ms)
            self._insert(self.event_timers, (time_ms, window))

    def remove_event_timer(self, time_ms: int, window: Window, pane: Pane) -> None:
        """Take a timer of a window back, if it is there."""
        if time_ms in pane.event_timers:
            self.journal.append((setattr, pane, "event_timers", pane.event_timers))
            pane.event_timers = tuple(one for one in pane.event_timers if one != time_ms)
            self._remove(self.event_timers, (time_ms, window))

    def spend_event_timer(self) -> WindowTimer:
        """Take the first timer out, which is about to fire."""
        timer = self.event_timers.pop(0)
        self.journal.append((self.event_timers.insert, 0, timer))
        time_ms, window = timer
        if (pane := self.panes.get(window)) is not None:
            self.journal.append((setattr, pane, "event_timers", pane.event_timers))
            pane.event_timers = tuple(one for one in pane.event_timers if one != time_ms)
        return timer

    def spend_processing_timer(self) -> WindowTimer:
        """As `spend_event_timer`, by processing time."""
        timer = self.processing_timers.pop(0)
        self.journal.append((self.processing_timers.insert, 0, timer))
        time_ms, window = timer
        if (pane := self.panes.get(window)) is not None:
            self.journal.append((setattr, pane, "processing_timers", pane.processing_timers))
            pane.processing_timers = tuple(one for one in pane.processing_timers if one != time_ms)
        return timer

    def add_processing_timer(self, time_ms: int, window: Window, pane: Pane) -> None:
        """As `add_event_timer`, by processing time."""
        if time_ms not in pane.processing_timers:
            self.journal.append((setattr, pane, "processing_timers", pane.processing_timers))
            pane.processing_timers = (*pane.processing_timers, time_ms)
            self._insert(self.processing_timers, (time_ms, window))

    def remove_processing_timer(self, time_ms: int, window: Window, pane: Pane) -> None:
        """As `remove_event_timer`, by processing time."""
        if time_ms in pane.processing_timers:
            self.journal.append((setattr, pane, "processing_timers", pane.processing_timers))
            pane.processing_timers = tuple(one for one in pane.processing_timers if one != time_ms)
            self._remove(self.processing_timers, (time_ms, window))

    def _windows_in_order(self) -> list[Window]:
        if self.in_order is None:
            self.in_order = sorted(self.panes)
        return self.in_order

    def _replace_in_order(self, first: int, last: int, windows: list[Window]) -> None:
        in_order = self._windows_in_order()
        before = in_order[first:last]
        in_order[first:last] = windows
        self.journal.append((in_order.__setitem__, slice(first, first + len(windows)), before))

    def _insert(self, timers: list[WindowTimer], timer: WindowTimer) -> None:
        insort(timers, timer)
        self.journal.append((_take_out, timers, timer))

    def _remove(self, timers: list[WindowTimer], timer: WindowTimer) -> None:
        _take_out(timers, timer)
        self.journal.append((insort, timers, timer))


def _take_out(timers: list[WindowTimer], timer: WindowTimer) -> None:
    del timers[bisect_left(timers, timer)]
