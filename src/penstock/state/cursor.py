"""The cursor: where per-record code is at the moment, and how to take back what it has changed."""

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
    """Where per-record code is at the moment, and what to take back if it raises.

    `key` is the current key, None where code runs for a whole step. `time` is the event time by which values that have
    a history are read, and from which they hold when they are set; None is the cut. `time_ms` is the event time in
    milliseconds where no values are read by it and no field of the record holds it. `now_ms` is the time of the
    micro-batch and `clock_ms` the largest event time so far, None before the first: what is kept for a time expires by
    them. `timers` are those of the current key, where there are any. `watermark_ms` is the watermark, None before the
    first, and `has_watermarks` whether there ever is one.
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
        """Undo what the current record has changed, but for values of which `keep` says so."""
        for undo in reversed(self.undo):
            if keep is None or not keep(undo[0]):
                take_back(undo)
        self.undo.clear()
