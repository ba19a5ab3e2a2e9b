"""Signals: Ctrl-C and SIGTERM stop a run between two micro-batches."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["handle_signals"]


@contextlib.contextmanager
def handle_signals(stop: threading.Event) -> Iterator[None]:
    """Stop the job on Ctrl-C or SIGTERM while it starts and runs; end the process at once on a second one."""
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
