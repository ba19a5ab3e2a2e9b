"""Halves: rows that fail are isolated, in order, and nothing is left for Python's collector."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.garbage import no_cyclic_collection
from penstock.records.halves import work_by_halves


@given(st.lists(st.booleans(), max_size=40))
def test_each_row_is_worked_on_or_refused_in_order(fails: list[bool]) -> None:
    """Ranges of rows without a failure are worked on once."""
    seen: list[tuple[int, bool]] = []

    def work(low: int, high: int) -> None:
        if any(fails[low:high]):
            raise ValueError(low)
        seen.extend((row, False) for row in range(low, high))

    work_by_halves(len(fails), work, lambda row, _: seen.append((row, True)))
    assert seen == list(enumerate(fails))


def test_work_that_fails_without_rows_raises() -> None:
    def work(low: int, high: int) -> None:
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows"):
        work_by_halves(0, work, lambda *_: None)


def test_rows_are_not_kept_in_a_cycle() -> None:
    """In real time, cycles stay until the collector runs after minutes: a worker grew by 2 MB a second."""
    refused: list[int] = []

    def work(low: int, high: int) -> None:
        raise ValueError(low)

    with no_cyclic_collection():
        kept = weakref.ref(work)
        work_by_halves(3, work, lambda row, _: refused.append(row))
        del work
        assert kept() is None
    assert refused == [0, 1, 2]
