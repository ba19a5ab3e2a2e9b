"""Emissions: what leaves windows, and how many records went which way."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.windows.window import Window

__all__ = ["Emission", "Emitted", "LateRecord", "SideRecord"]


class Emission(NamedTuple):
    """What one firing of a window emits.

    `timestamp_ms` is the event time of the results: the last millisecond of the window; of a window without an end that
    of the record or the timer that fired it, None when that was the clock or the end of time.
    """

    key: Any
    window: Window
    results: list[Any]
    timestamp_ms: int | None


class LateRecord(NamedTuple):
    """A record whose windows had been cleaned up when it came; `time_ms` is its own time."""

    key: Any
    time_ms: int
    record: Any


class SideRecord(NamedTuple):
    """A record that a window function has emitted to a side output; `timestamp_ms` as of its results."""

    key: Any
    window: Window
    name: str
    record: Any
    timestamp_ms: int | None


class Emitted:
    """What windows have emitted, in order, and what became of the records that were processed.

    Each record that was processed without an error is counted once.

    Attributes:
        panes: what firings emitted.
        late: late records, where they are asked for.
        side_outputs: what window functions emitted to side outputs.
        in_windows: number of records that came into a window or more.
        late_records: number of records that were late, and went to `late`.
        dropped_late: number of records that were late, and were dropped.
        without_window: number of records for which there was no window, as in the gaps of sliding windows.

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
        """Forget it all."""
        self.panes: list[Emission] = []
        self.late: list[LateRecord] = []
        self.side_outputs: list[SideRecord] = []
        self.in_windows = 0
        self.late_records = 0
        self.dropped_late = 0
        self.without_window = 0
