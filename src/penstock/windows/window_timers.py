"""Window timers: those of many keys, in time order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from penstock.windows.panes import OpenWindows

__all__ = ["in_time_order", "next_event_timer", "next_processing_timer"]

K = TypeVar("K")

NextTimer = Callable[[OpenWindows], int | None]


def next_event_timer(windows: OpenWindows) -> int | None:
    """Return when the first event-time timer of a key is due, in milliseconds; None if there is none."""
    return windows.event_timers[0][0] if windows.event_timers else None


def next_processing_timer(windows: OpenWindows) -> int | None:
    """Return when the first processing-time timer of a key is due, in milliseconds; None if there is none."""
    return windows.processing_timers[0][0] if windows.processing_timers else None


def in_time_order(
    keys: Sequence[tuple[K, OpenWindows]], next_timer: NextTimer, until_ms: int
) -> Iterator[tuple[K, OpenWindows]]:
    """Yield the key whose timer is next, while any timer is due at or before `until_ms`.

    The caller must fire that timer before it takes the next key. Timers registered by a firing are included. Timers at
    the same time are in the order of `keys`.
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
