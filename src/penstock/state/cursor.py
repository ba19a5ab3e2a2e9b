"""The cursor: the current key and times of per-record code, and how to undo its changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.state.timer import KeyTimers
from penstock.state.undo import Undo, take_back

__all__ = ["Cursor"]


@dataclass(slots=True)
class Cursor:
    """The position of per-record code, and the changes to undo if it raises.

    Attributes:
        key: the current key; None while code runs for a whole step.
        undo: the changes of the current record, in order.
        time: the event time at which values with a history are read, and from which they hold when set; None is the
            cut.
        now_ms: the time of the micro-batch. Values with a processing-time TTL expire by it.
        clock_ms: the largest event time so far, None before the first. Values with an event-time TTL expire by it.
        timers: the timers of the current key, if the step has any.
        watermark_ms: the watermark; None before the first.
        has_watermarks: whether the step ever gets a watermark.
        time_ms: the event time in milliseconds, if no values are read at it and no field of the record holds it.

    """

    key: Any
    undo: list[Undo]
    time: dt.datetime | None = None
    now_ms: int = 0
    clock_ms: int | None = None
    timers: KeyTimers | None = None
    watermark_ms: int | None = None
    has_watermarks: bool = False
    time_ms: int | None = None

    def take_back(self, keep: Callable[[dict[Any, Any]], bool] | None = None) -> None:
        """Undo the changes of the current record, except to values for which `keep` returns True."""
        for undo in reversed(self.undo):
            if keep is None or not keep(undo[0]):
                take_back(undo)
        self.undo.clear()
