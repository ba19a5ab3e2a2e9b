"""Steady feed: a thread that writes input repeatedly while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["feed_steadily"]


@contextmanager
def feed_steadily(
    write: Callable[[], None], pause_s: float, away: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Call a function at intervals while the block runs. After an error of type `away`, when a server is
    down, it is retried.

    Any other error ends the calls, and is raised at the end.
    """
    stop = threading.Event()
    failures: list[Exception] = []

    def feed() -> None:
        try:
            while not stop.wait(pause_s):
                with suppress(*away):
                    write()
        except Exception as e:
            failures.append(e)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failures:
            raise failures[0]
