"""Signals: Ctrl-C and SIGTERM stop a run between two micro-batches."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["handle_signals"]

_SAME_S: Final = 0.2


@contextlib.contextmanager
def handle_signals(stop: threading.Event) -> Iterator[None]:
    """Stop the job on Ctrl-C or SIGTERM while it starts and runs; end the process at once on a second one.

    Signals that follow within a moment count as one request: `timeout` signals the process, then its group.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    until_s = float("-inf")

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001  # the signature is Python's
        nonlocal until_s
        now_s = time.monotonic()
        if not stop.is_set():
            until_s = now_s + _SAME_S
            stop.set()
        elif now_s > until_s:
            os._exit(128 + number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
