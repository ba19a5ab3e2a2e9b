"""Garbage: pause Python's cyclic collector while many objects without cycles are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collect_again", "keep_uncollected", "no_cyclic_collection"]


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: records form no cycles, and collections cost more than the records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
