"""Contexts: the interfaces of triggers, evictors and window functions to their window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import StateError
from penstock.windows.panes import OpenWindows, Pane
from penstock.windows.window import GLOBAL, MAX_TIME, MIN_TIME, Window

__all__ = ["Clock", "EvictorContext", "TriggerContext", "WindowContext"]


class Clock:
    """The current time, in milliseconds since 1970. The caller of the window operator advances it between records.

    Attributes:
        watermark_ms: the watermark; `MIN_TIME` at first, `MAX_TIME` when the stream has ended.
        processing_ms: the processing time.

    """

    __slots__ = ("processing_ms", "watermark_ms")

    def __init__(self, watermark_ms: int = MIN_TIME, processing_ms: int = 0) -> None:
        self.watermark_ms = watermark_ms
        self.processing_ms = processing_ms


class EvictorContext:
    """The context of an evictor.

    Attributes:
        watermark: the watermark, in milliseconds since 1970; `-2**63` before the first.
        processing_time: the processing time, in milliseconds since 1970.

    """

    __slots__ = ("_pane", "_windows", "processing_time", "watermark", "window")

    def __init__(self) -> None:
        self.watermark = MIN_TIME
        self.processing_time = 0
        self.window = GLOBAL
        self._windows = OpenWindows()
        self._pane = Pane()

    def enter(self, windows: OpenWindows, clock: Clock) -> None:
        """Set the windows and times. Called before a key's record or timer."""
        self._windows = windows
        self.watermark = clock.watermark_ms
        self.processing_time = clock.processing_ms

    def turn_to(self, window: Window, pane: Pane) -> None:
        """Set the window. Called before each window."""
        self.window = window
        self._pane = pane


class TriggerContext(EvictorContext):
    """The context of a trigger: the state and timers of its current window.

    Attributes:
        watermark: the watermark, in milliseconds since 1970; `-2**63` before the first.
        processing_time: the processing time, in milliseconds since 1970.
        merged_states: in `on_merge`, the states of the merged windows, the earliest window first; None for a window
            without state.

    """

    __slots__ = ("_declared", "merged_states")

    def __init__(self, *, keeps_state: bool) -> None:
        super().__init__()
        self.merged_states: tuple[Any, ...] = ()
        self._declared = keeps_state

    @property
    def state(self) -> Any:
        """The trigger's state for the window; None at first. Set it to None to clear it.

        To change it, assign a new value; do not modify the value in place.
        """
        return self._pane.trigger_state

    @state.setter
    def state(self, value: Any) -> None:
        if not self._declared:
            raise StateError(
                "ctx.state is for triggers that declare its type as state_type; this one does not."
            )
        pane = self._pane
        self._windows.journal.append((setattr, pane, "trigger_state", pane.trigger_state))
        pane.trigger_state = value

    def register_event_timer(self, time_ms: int) -> None:
        """Register a timer that calls `on_event_time` when the watermark reaches a time, in milliseconds since 1970.

        If the watermark has already passed that time, the timer fires when the watermark next advances.
        """
        pane = self._pane
        if time_ms not in pane.event_timers:
            self._windows.add_timer("event_timers", _check(time_ms), self.window, pane)

    def register_processing_timer(self, time_ms: int) -> None:
        """Register a timer that calls `on_processing_time` when the clock reaches a time, given in ms since 1970."""
        pane = self._pane
        if time_ms not in pane.processing_timers:
            self._windows.add_timer("processing_timers", _check(time_ms), self.window, pane)

    def delete_event_timer(self, time_ms: int) -> None:
        """Delete an event-time timer, if it exists. The timer that cleans up the window cannot be deleted."""
        if time_ms != self._pane.cleanup_ms:
            self._windows.remove_timer("event_timers", time_ms, self.window, self._pane)

    def delete_processing_timer(self, time_ms: int) -> None:
        """Delete a processing-time timer, if it exists. The timer that cleans up the window cannot be deleted."""
        if time_ms != self._pane.cleanup_ms:
            self._windows.remove_timer("processing_timers", time_ms, self.window, self._pane)


class WindowContext(EvictorContext):
    """The context of a window function: the window that fires, its state, and side outputs.

    Attributes:
        window: the window, with its `start` and `end`.
        watermark: the watermark, in milliseconds since 1970; `-2**63` before the first.
        processing_time: the processing time, in milliseconds since 1970.

    """

    __slots__ = ("_declared", "_side_outputs", "emitted_aside")

    def __init__(self, side_outputs: Mapping[str, Any], *, keeps_state: bool) -> None:
        super().__init__()
        self.emitted_aside: list[tuple[str, Any]] = []
        self._side_outputs = frozenset(side_outputs)
        self._declared = keeps_state

    @property
    def state(self) -> Any:
        """The function's state for the window, kept until the window is cleaned up; None at first.

        To change it, assign a new value; do not modify the value in place.
        """
        return self._pane.window_state

    @state.setter
    def state(self, value: Any) -> None:
        if not self._declared:
            raise StateError(
                "ctx.state is for window functions that declare its type as window_state; this one does not."
            )
        pane = self._pane
        self._windows.journal.append((setattr, pane, "window_state", pane.window_state))
        pane.window_state = value

    def side_output(self, name: str, record: Any) -> None:
        """Emit a record to a side output. Raises ValueError if the function does not declare it in `side_outputs`."""
        if name not in self._side_outputs:
            known = ", ".join(sorted(self._side_outputs)) or "none"
            raise ValueError(f"the side output {name!r} is not declared; declared are: {known}")
        self.emitted_aside.append((name, record))


def _check(time_ms: int) -> int:
    if not isinstance(time_ms, int) or isinstance(time_ms, bool):
        raise TypeError(f"the time of a timer is an int, in milliseconds since 1970, not {time_ms!r}")
    if not MIN_TIME <= time_ms <= MAX_TIME:
        raise ValueError(f"the time {time_ms} of a timer does not fit into 64 bits")
    return time_ms
