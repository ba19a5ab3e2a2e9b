"""Garbage: pause Python's cyclic collector while many objects without cycles are made."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["collect_again", "keep_uncollected", "no_cyclic_collection"]


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


def keep_uncollected(*, also_cycles: bool) -> None:
    """Exempt the present objects, most of which stay, from the cyclic collector.

    The collector stops all threads while it scans them, for 20 to 100 ms in a worker with some state. Cycles among them
    stay in memory too, until a call with `also_cycles`.
    """
    if also_cycles:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def collect_again() -> None:
    """Let the cyclic collector scan all objects again, since some are no longer needed."""
    gc.unfreeze()
