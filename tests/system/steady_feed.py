"""Steady feed: a thread that writes input again and again while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["feed_steadily"]


@contextmanager
def feed_steadily(
    write: Callable[[], None], pause_s: float, away: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Call a function after each pause meanwhile. The errors `away` say that a server is away: it is called again.

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
