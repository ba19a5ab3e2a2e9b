"""Emissions: the records that windows emit, and the number of records by outcome."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.windows.window import Window

__all__ = ["Emission", "Emitted", "LateRecord", "SideRecord"]


class Emission(NamedTuple):
    """The results of one firing of a window.

    `timestamp_ms` is the event time of the results: the last millisecond of the window. For a window without an end, it
    is that of the record or the timer that fired it, or None if the clock or the end of time did.
    """

    key: Any
    window: Window
    results: list[Any]
    timestamp_ms: int | None


class LateRecord(NamedTuple):
    """A record that arrived after its windows had been cleaned up; `time_ms` is its own time."""

    key: Any
    time_ms: int
    record: Any


class SideRecord(NamedTuple):
    """A record that a window function has emitted to a side output; `timestamp_ms` is that of its results."""

    key: Any
    window: Window
    name: str
    record: Any
    timestamp_ms: int | None


class Emitted:
    """The emissions of windows, in order, and the number of processed records by outcome.

    Each record that was processed without an error is counted once.

    Attributes:
        panes: the results of firings.
        late: the late records, if the step emits them.
        side_outputs: the records that window functions emitted to side outputs.
        in_windows: the number of records put into at least one window.
        late_records: the number of late records in `late`.
        dropped_late: the number of late records that were dropped.
        without_window: the number of records without a window, such as in the gaps of sliding windows.

    """

    __slots__ = (
        "dropped_late",
        "in_windows",
        "late",
        "late_records",
        "panes",
        "side_outputs",
        "without_window",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything, and reset the counts."""
        self.panes: list[Emission] = []
        self.late: list[LateRecord] = []
        self.side_outputs: list[SideRecord] = []
        self.in_windows = 0
        self.late_records = 0
        self.dropped_late = 0
        self.without_window = 0
