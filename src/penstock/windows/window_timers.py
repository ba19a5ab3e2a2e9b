"""The timers of many keys, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from penstock.windows.panes import OpenWindows

__all__ = ["in_time_order", "next_event_timer", "next_processing_timer"]

K = TypeVar("K")

NextTimer = Callable[[OpenWindows], int | None]


def next_event_timer(windows: OpenWindows) -> int | None:
    """When the first timer of a key by event time is due, in milliseconds; None when there is none."""
    return windows.event_timers[0][0] if windows.event_timers else None


def next_processing_timer(windows: OpenWindows) -> int | None:
    """When the first timer of a key by processing time is due, in milliseconds; None when there is none."""
    return windows.processing_timers[0][0] if windows.processing_timers else None


def in_time_order(
    keys: Sequence[tuple[K, OpenWindows]], next_timer: NextTimer, until_ms: int
) -> Iterator[tuple[K, OpenWindows]]:
    """The key whose timer is next, for as long as there is one that is due not later than a time.

    The timer has to be fired before the next key is asked for. Timers that firing registers come in their turn. Of
    timers of one time, those of keys that come first in `keys` are first.
    """
    heap = [
        (time_ms, index)
        for index, (_, windows) in enumerate(keys)
        if (time_ms := next_timer(windows)) is not None and time_ms <= until_ms
    ]
    heapq.heapify(heap)
    while heap:
        _, index = heap[0]
        yield keys[index]
        time_ms = next_timer(keys[index][1])
        if time_ms is not None and time_ms <= until_ms:
            heapq.heapreplace(heap, (time_ms, index))
        else:
            heapq.heappop(heap)
