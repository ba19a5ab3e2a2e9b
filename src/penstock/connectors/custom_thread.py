"""Custom threads: all calls of an object of the user's class are made in one thread."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["CustomThread", "take_thread"]

_Result = TypeVar("_Result")


class CustomThread:
    """A thread for the calls of one object. Some clients, such as SQLite's, work only in the thread that made them.

    In real time the thread that finishes an interval is another than the one that writes it.
    """

    def __init__(self) -> None:
        self._calls: Final[queue.SimpleQueue[Callable[[], Any]]] = queue.SimpleQueue()
        self._results: Final[queue.SimpleQueue[tuple[Any, BaseException | None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="custom sink", daemon=True).start()

    def call(self, work: Callable[[], _Result]) -> _Result:
        """Call something in the thread, and return or raise what it does. Only one caller at a time may wait."""
        self._calls.put(work)
        result: _Result
        result, error = self._results.get()
        if error is not None:
            raise error
        return result

    def give_back(self) -> None:
        """Leave the thread to the next object, which may use the data that the user's module keeps for this thread."""
        _idle.append(self)

    def _run(self) -> None:
        while True:
            work = self._calls.get()
            try:
                self._results.put((work(), None))
            except BaseException as e:  # whatever it is, it is the caller's
                self._results.put((None, e))
            # Objects that it refers to must not stay until the next call.
            del work


_idle: Final[list[CustomThread]] = []
# A forked process has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)


def take_thread() -> CustomThread | None:
    """Return a thread that no other object has; None in the main thread, in which micro-batches do all their work."""
    if threading.current_thread() is threading.main_thread():
        return None
    try:
        return _idle.pop()
    except IndexError:
        return CustomThread()
