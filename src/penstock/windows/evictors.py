"""Window evictors: drop records of a window around a firing."""
# Overriding methods are as the base class declares them.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.base.durations import Duration
from penstock.errors import JobDefinitionError
from penstock.windows.contexts import EvictorContext
from penstock.windows.window import Window
from penstock.windows.window_parameters import Parameter

__all__ = ["CountEvictor", "DeltaEvictor", "Element", "Evictor", "TimeEvictor"]

Element = tuple[int, Any]
"""A record of a window: its time in milliseconds since 1970, and the record."""


class Evictor:
    """Which records stay in a window when it fires. Derive your own from it.

    What an evictor drops is gone for good. Windows with an evictor keep all their records until then, also those that
    are reduced or aggregated.

    >>> class WithoutZeros(Evictor):
    ...     def evict_before(self, elements, size, window, ctx):
    ...         return [(time_ms, record) for time_ms, record in elements if record != 0]

    """

    def evict_before(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        """The elements to keep, of all `size` in the order in which they came; asked before the window function.

        The function sees what is kept. It is called when nothing is, too.
        """
        return elements

    def evict_after(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        """The elements to keep of those that the window function has seen; asked after it."""
        return elements


class _OneTime(Evictor):
    """An evictor that drops the same before the window function or after it."""

    def __init__(self, *, after: bool) -> None:
        self._after = after

    def evict_before(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        return elements if self._after or not elements else self._kept(elements)

    def evict_after(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        return self._kept(elements) if self._after and elements else elements

    def _kept(self, elements: Sequence[Element]) -> Sequence[Element]:
        raise NotImplementedError


class CountEvictor(_OneTime):
    """Keeps the `count` records that came last."""

    def __init__(self, count: int | Parameter, *, after: bool = False) -> None:
        super().__init__(after=after)
        self._count = Parameter.count(count, "the count of a CountEvictor", least=0)

    def _kept(self, elements: Sequence[Element]) -> Sequence[Element]:
        return elements[max(0, len(elements) - self._count.value) :]


class TimeEvictor(_OneTime):
    """Keeps the records whose time is less than `keep` before the latest time among them."""

    def __init__(self, keep: Duration | Parameter, *, after: bool = False) -> None:
        super().__init__(after=after)
        self._keep = Parameter.duration(keep, "the time that a TimeEvictor keeps", least_ms=0)

    def _kept(self, elements: Sequence[Element]) -> Sequence[Element]:
        cutoff_ms = max(time_ms for time_ms, _ in elements) - self._keep.value
        return [element for element in elements if element[0] > cutoff_ms]


class DeltaEvictor(_OneTime):
    """Keeps the records that differ by less than `threshold` from the one that came last.

    Args:
        threshold: drops from it on; 0 drops everything.
        delta: a function of a record and the last one that says how much they differ.
        after: whether it drops after the window function.

    """

    def __init__(
        self, threshold: float | Parameter, delta: Callable[[Any, Any], float], *, after: bool = False
    ) -> None:
        super().__init__(after=after)
        if not callable(delta):
            raise JobDefinitionError(
                f"The delta of a DeltaEvictor is a function of two records, not {delta!r}."
            )
        self._threshold = Parameter.number(threshold, "the threshold of a DeltaEvictor")
        self._delta = delta

    def _kept(self, elements: Sequence[Element]) -> Sequence[Element]:
        threshold, last = self._threshold.value, elements[-1][1]
        return [element for element in elements if self._delta(element[1], last) < threshold]
