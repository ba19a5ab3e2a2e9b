"""Garbage: let Python's cyclic collector rest while many objects are made that form no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_cyclic_collection"]


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
