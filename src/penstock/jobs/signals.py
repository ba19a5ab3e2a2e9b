"""Signals: Ctrl-C and SIGTERM stop a run between two micro-batches."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["signals_set"]


@contextlib.contextmanager
def signals_set(stop: threading.Event) -> Iterator[None]:
    """While the job starts and runs, Ctrl-C and SIGTERM stop it; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001  # the signature is Python's
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
