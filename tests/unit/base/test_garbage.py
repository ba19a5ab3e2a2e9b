"""The cyclic collector skips permanent objects, and collects their cycles on request."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock.base.garbage import collect_again, keep_uncollected


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _collected_again() -> Iterator[None]:
    yield
    collect_again()


def test_cycles_stay_until_they_are_asked_for() -> None:
    """Collections in between skip objects that existed before."""
    known = weakref.ref(Ring())
    keep_uncollected(also_cycles=False)
    gc.collect()
    assert known() is not None
    keep_uncollected(also_cycles=True)
    assert known() is None


def test_afterwards_everything_is_collected_again() -> None:
    """This includes objects that were skipped."""
    known = weakref.ref(Ring())
    keep_uncollected(also_cycles=False)
    collect_again()
    gc.collect()
    assert known() is None
