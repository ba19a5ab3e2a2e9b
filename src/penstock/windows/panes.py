"""The open windows of a key: their contents, their timers, and the rollback when a function raises."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

from penstock.windows.window import MIN_TIME, Window

__all__ = ["TIMER_KINDS", "OpenWindows", "Pane", "TimerKind", "WindowTimer"]

WindowTimer = tuple[int, Window]
"""The time of a timer, and its window."""

TimerKind: TypeAlias = Literal["event_timers", "processing_timers"]
"""The clock of a timer, by the name of the attribute of `Pane` and `OpenWindows` that holds the timer."""

TIMER_KINDS: Final[tuple[TimerKind, ...]] = get_args(TimerKind)


class Pane:
    """The stored data of an open window.

    Attributes:
        contents: a list of (time in milliseconds, record) in the order of arrival, or the value that the records were
            folded into; None if empty, because all records were purged or evicted.
        count: the number of records in the contents.
        trigger_state: the state of the trigger.
        window_state: the state of the window function.
        cleanup_ms: when the window is cleaned up; the end of time if never.
        event_timers: the times of the window's event-time timers, unordered and distinct.
        processing_timers: likewise for processing time.

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
        # The operator sets it when it opens the window.
        self.cleanup_ms = MIN_TIME
        # Tuples, so that a rollback only restores the earlier tuple.
        self.event_timers: tuple[int, ...] = ()
        self.processing_timers: tuple[int, ...] = ()

    def restore(self, contents: Any, count: int) -> None:
        """Restore earlier contents."""
        self.contents = contents
        self.count = count

    def drop_last(self) -> None:
        """Remove the last record."""
        self.contents.pop()
        self.count -= 1

    def is_empty(self) -> bool:
        """Return whether the window has no contents, no states and no timers."""
        return (
            self.contents is None
            and self.trigger_state is None
            and self.window_state is None
            and not self.event_timers
            and not self.processing_timers
        )


class OpenWindows:
    """The open windows of one key.

    The journal records for each change the call that undoes it. The owner of the windows calls `commit`, which clears
    the journal, after each record or timer. `roll_back` undoes the changes; `WindowOperator` calls it when a function
    raises.

    Attributes:
        panes: the data of each window.
        event_timers: the event-time timers, sorted and distinct.
        processing_timers: likewise for processing time.
        in_order: the windows sorted by start, for windows that merge; None until first needed.
        journal: the calls that undo the changes since the last commit, in the order of the changes: a function and its
            arguments.
        fitting: the version of the assigner that all windows are known to fit; None if unknown.

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
        """Return the windows of stored panes, with the panes' timers."""
        windows = cls()
        windows.panes = dict(panes)
        for kind in TIMER_KINDS:
            timers = getattr(windows, kind)
            for window, pane in windows.panes.items():
                timers.extend((time_ms, window) for time_ms in getattr(pane, kind))
            timers.sort()
        return windows

    def commit(self) -> None:
        """Make all changes final."""
        self.journal.clear()

    def roll_back(self, mark: int = 0) -> None:
        """Undo all changes since the journal had `mark` entries; by default, since the last commit."""
        journal = self.journal
        while len(journal) > mark:
            undo, *arguments = journal.pop()
            undo(*arguments)

    def open(self, window: Window) -> Pane:
        """Open a window, which must not be open."""
        pane = self.panes[window] = Pane()
        self.journal.append((self.panes.pop, window))
        if self.in_order is not None:
            index = bisect_left(self.in_order, window)
            self._replace_in_order(index, index, [window])
        return pane

    def close(self, window: Window) -> None:
        """Remove a window and its timers."""
        pane = self.panes.pop(window)
        self.journal.append((self.panes.__setitem__, window, pane))
        for kind in TIMER_KINDS:
            for time_ms in getattr(pane, kind):
                self._remove(getattr(self, kind), (time_ms, window))
        if self.in_order is not None:
            index = bisect_left(self.in_order, window)
            self._replace_in_order(index, index + 1, [])

    def touching(self, window: Window) -> list[Window]:
        """Return the open windows that overlap or touch a window, sorted by start. No two of them may do so."""
        in_order = self._windows_in_order()
        first = last = bisect_left(in_order, window)
        if first and in_order[first - 1].end >= window.start:
            first -= 1
        while last < len(in_order) and in_order[last].start <= window.end:
            last += 1
        return in_order[first:last]

    def add_timer(self, kind: TimerKind, time_ms: int, window: Window, pane: Pane) -> None:
        """Register a timer of a window, unless it exists."""
        times = getattr(pane, kind)
        if time_ms not in times:
            self.journal.append((setattr, pane, kind, times))
            setattr(pane, kind, (*times, time_ms))
            timers, timer = getattr(self, kind), (time_ms, window)
            insort(timers, timer)
            self.journal.append((_take_out, timers, timer))

    def remove_timer(self, kind: TimerKind, time_ms: int, window: Window, pane: Pane) -> None:
        """Remove a timer of a window, if it exists."""
        if time_ms in getattr(pane, kind):
            self._drop_time(kind, time_ms, pane)
            self._remove(getattr(self, kind), (time_ms, window))

    def spend_timer(self, kind: TimerKind) -> WindowTimer:
        """Remove the first timer by one clock, which is about to fire, and return it."""
        timers: list[WindowTimer] = getattr(self, kind)
        timer = timers.pop(0)
        self.journal.append((timers.insert, 0, timer))
        time_ms, window = timer
        if (pane := self.panes.get(window)) is not None:
            self._drop_time(kind, time_ms, pane)
        return timer

    def _drop_time(self, kind: TimerKind, time_ms: int, pane: Pane) -> None:
        times = getattr(pane, kind)
        self.journal.append((setattr, pane, kind, times))
        setattr(pane, kind, tuple([one for one in times if one != time_ms]))

    def _windows_in_order(self) -> list[Window]:
        if self.in_order is None:
            self.in_order = sorted(self.panes)
        return self.in_order

    def _replace_in_order(self, first: int, last: int, windows: list[Window]) -> None:
        in_order = self._windows_in_order()
        before = in_order[first:last]
        in_order[first:last] = windows
        self.journal.append((in_order.__setitem__, slice(first, first + len(windows)), before))

    def _remove(self, timers: list[WindowTimer], timer: WindowTimer) -> None:
        _take_out(timers, timer)
        self.journal.append((insort, timers, timer))


def _take_out(timers: list[WindowTimer], timer: WindowTimer) -> None:
    del timers[bisect_left(timers, timer)]
