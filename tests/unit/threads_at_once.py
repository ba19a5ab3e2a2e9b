"""Calls that are made at once, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

__all__ = ["call_at_once"]


def call_at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Begin all calls, and return when the last one has returned."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
