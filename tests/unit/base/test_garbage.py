"""The cyclic collector skips permanent objects, and collects their cycles on request."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Iterator

import pytest

from penstock.base.garbage import LastingObjects, collect_again, no_cyclic_collection
from penstock.machine.memory import resident_bytes


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _collected_again() -> Iterator[None]:
    yield
    collect_again()


def test_cycles_stay_until_enough_calls() -> None:
    """Collections in between skip objects that existed before."""
    known = weakref.ref(Ring())
    lasting = LastingObjects(3)
    for _ in range(2):
        lasting.exempt()
        gc.collect()
        assert known() is not None
    lasting.exempt()
    assert known() is None


def test_cycles_are_collected_when_many_objects_have_come() -> None:
    """Code that makes cycles does not fill the memory until then."""
    lasting = LastingObjects(1_000_000)
    lasting.exempt()
    known = weakref.ref(Ring())
    lasting.exempt()
    many = [object() for _ in range(sys.getallocatedblocks())]
    assert known() is not None
    lasting.exempt()
    assert known() is None
    # As many as these are usual now.
    known = weakref.ref(Ring())
    lasting.exempt()
    assert known() is not None
    assert many


def test_afterwards_everything_is_collected_again() -> None:
    """This includes objects that were skipped."""
    known = weakref.ref(Ring())
    LastingObjects(3).exempt()
    collect_again()
    gc.collect()
    assert known() is None


def test_the_last_pause_to_end_enables_the_collector() -> None:
    """Threads pause it independently: a short pause within a long one, and one that ends after another began."""
    first, second, third = no_cyclic_collection(), no_cyclic_collection(), no_cyclic_collection()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    third.__enter__()
    second.__exit__(None, None, None)
    assert not gc.isenabled()
    third.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_was_disabled_stays_so() -> None:
    """Pauses enable it only if it was."""
    gc.disable()
    try:
        with no_cyclic_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives such memory back")
def test_free_memory_between_objects_goes_back_with_a_collection() -> None:
    """Of 100 MB in blocks of 2 KB each sixteenth stays, so the pages between them are free."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(2000) for _ in range(50_000)]
    for block in blocks:
        ctypes.memset(block, 1, 2000)
    for number, block in enumerate(blocks):
        if number % 16:
            library.free(block)
    before = resident_bytes(os.getpid())
    LastingObjects(1).exempt()
    freed = before - resident_bytes(os.getpid())
    for block in blocks[::16]:
        library.free(block)
    assert freed > 50_000_000
