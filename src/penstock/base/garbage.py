"""Garbage: spare Python's cyclic collector objects without cycles, and give free memory back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["LastingObjects", "collect_again", "no_cyclic_collection"]

# Cycles are collected when there are this many times the objects that the last collection has left.
_GROWTH: Final = 1.5


class _Pauses:
    """The pauses of all threads, since the collector is one for the process."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        """Disable the collector with the first pause."""
        with self._changing:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        """Enable the collector with the end of the last one."""
        with self._changing:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_pauses: Final = _Pauses()


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: records form no cycles, and collections cost more than the records.

    It stays disabled until no thread is in such a block.
    """
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


class LastingObjects:
    """The objects of a process, most of which stay, kept from the cyclic collector with each `exempt`.

    It would stop all threads while it scans them, for 20 to 100 ms in a worker with some state. Cycles among them stay
    in memory until they are collected: with every `calls` calls, and when there are half as many objects again as the
    last collection has left, or as there were at first. Memory that is free between objects goes back to the system
    then.
    """

    def __init__(self, calls: int) -> None:
        self._calls: Final = calls
        self._since = 0
        self._most = _GROWTH * sys.getallocatedblocks()

    def exempt(self) -> None:
        """Exempt the present objects, some of which may be collected first."""
        self._since += 1
        if self._since >= self._calls or sys.getallocatedblocks() > self._most:
            gc.unfreeze()
            gc.collect()
            _return_free_memory()
            self._since, self._most = 0, _GROWTH * sys.getallocatedblocks()
        gc.freeze()


def _return_free_memory() -> None:
    """Give free pages between objects in use back to the system, where the C library can, as glibc does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_again() -> None:
    """Let the cyclic collector scan all objects again, since some are no longer needed."""
    gc.unfreeze()
