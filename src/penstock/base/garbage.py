"""Garbage: let Python's cyclic collector rest while many objects are made that form no cycles."""

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
    """Let the cyclic collector look no more at the objects that there are, most of which stay.

    It stops all threads while it looks at them, for 20 to 100 ms in a worker with some state. Cycles among them stay in
    memory, too, until a call with `also_cycles`.
    """
    if also_cycles:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def collect_again() -> None:
    """Let the cyclic collector look at all objects, since some are no longer needed."""
    gc.unfreeze()
