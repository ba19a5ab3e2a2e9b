"""Window evictors: which records they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import JobDefinitionError
from penstock.windows.contexts import EvictorContext
from penstock.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from penstock.windows.window import Window
from penstock.windows.window_parameters import Parameter

ELEMENTS = [(100, 1.0), (300, 4.0), (200, 3.0), (250, 2.0)]


def evicted(
    evictor: Evictor, elements: list[tuple[int, float]] = ELEMENTS
) -> tuple[list[float], list[float]]:
    """Return the records that remain before and after the firing."""
    window, ctx = Window(0, 1_000), EvictorContext()
    before = evictor.evict_before(elements, len(elements), window, ctx)
    after = evictor.evict_after(elements, len(elements), window, ctx)
    return [record for _, record in before], [record for _, record in after]


ALL = [1.0, 4.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        (lambda after: CountEvictor(2, after=after), [3.0, 2.0]),
        (lambda after: CountEvictor(9, after=after), ALL),
        (lambda after: CountEvictor(0, after=after), []),
        (lambda after: TimeEvictor("100ms", after=after), [4.0, 2.0]),
        (lambda after: TimeEvictor("0s", after=after), []),
        (lambda after: DeltaEvictor(2.0, lambda a, b: abs(a - b), after=after), [1.0, 3.0, 2.0]),
        (lambda after: DeltaEvictor(0, lambda a, b: abs(a - b), after=after), []),
    ],
)
def test_records_are_dropped_before_or_after(made: Callable[..., Evictor], kept: list[float]) -> None:
    """Count keeps the last ones, time those near the newest, delta those like the last one."""
    assert evicted(made(False)) == (kept, ALL)
    assert evicted(made(True)) == (ALL, kept)
    assert evicted(made(False), []) == evicted(made(True), []) == ([], [])


def test_the_base_keeps_everything() -> None:
    """Subclasses override one or both methods."""
    assert evicted(Evictor()) == (ALL, ALL)


def test_bounds_may_change() -> None:
    """A change holds from the next firing on."""
    count = Parameter(1)
    evictor = CountEvictor(count)
    assert evicted(evictor)[0] == [2.0]
    count.set(3)
    assert evicted(evictor)[0] == [4.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: CountEvictor(-1), "the count of a CountEvictor is -1"),
        (lambda: TimeEvictor(5), "the time that a TimeEvictor keeps is 5"),
        (lambda: DeltaEvictor("much", max), "the threshold of a DeltaEvictor is 'much'"),
        (lambda: DeltaEvictor(1.0, 2.0), "delta of a DeltaEvictor is a function of two records, not 2.0"),
    ],
)
def test_what_makes_no_evictor_is_refused(made: Callable[[], Any], said: str) -> None:
    """The error says what to do."""
    with pytest.raises(JobDefinitionError, match=said):
        made()
