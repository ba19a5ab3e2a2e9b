"""Window timers: those of many keys, in time order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.windows.panes import OpenWindows, TimerKind, WindowTimer

__all__ = ["in_time_order", "next_timer_ms"]

K = TypeVar("K")


def next_timer_ms(kind: TimerKind, windows: OpenWindows) -> int | None:
    """Return when the first timer of a key by one clock is due, in milliseconds; None if there is none."""
    timers: list[WindowTimer] = getattr(windows, kind)
    return timers[0][0] if timers else None


def in_time_order(
    kind: TimerKind, keys: Sequence[tuple[K, OpenWindows]], until_ms: int
) -> Iterator[tuple[K, OpenWindows]]:
    """Yield the key whose timer is next, while any timer is due at or before `until_ms`.

    The caller must fire that timer before it takes the next key. Timers registered by a firing are included. Timers at
    the same time are in the order of `keys`.
    """
    heap = [
        (time_ms, index)
        for index, (_, windows) in enumerate(keys)
        if (time_ms := next_timer_ms(kind, windows)) is not None and time_ms <= until_ms
    ]
    heapq.heapify(heap)
    while heap:
        _, index = heap[0]
        yield keys[index]
        time_ms = next_timer_ms(kind, keys[index][1])
        if time_ms is not None and time_ms <= until_ms:
            heapq.heapreplace(heap, (time_ms, index))
        else:
            heapq.heappop(heap)
