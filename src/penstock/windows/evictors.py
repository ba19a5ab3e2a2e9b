"""Window evictors: drop records of a window before or after it fires."""
# Overriding methods are documented in the base class.
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
    """A window evictor: chooses the records that stay in a window when it fires. Derive your own from it.

    A dropped record is gone for good. Windows with an evictor keep all of their records until then, even if they reduce
    or aggregate them.

    >>> class WithoutZeros(Evictor):
    ...     def evict_before(self, elements, size, window, ctx):
    ...         return [(time_ms, record) for time_ms, record in elements if record != 0]

    """

    def evict_before(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        """Return the elements to keep, of all `size` in the order of arrival. Called before the window function.

        The window function receives the kept elements. It is called even if none is kept.
        """
        return elements

    def evict_after(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        """Return the elements to keep, of those that the window function has received. Called after it."""
        return elements


class _OneTime(Evictor):
    """An evictor that drops records either before or after the window function."""

    def __init__(self, *, after: bool) -> None:
        self._after = after

    def evict_before(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        return elements if self._after or not elements else self._select(elements)

    def evict_after(
        self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
    ) -> Sequence[Element]:
        return self._select(elements) if self._after and elements else elements

    def _select(self, elements: Sequence[Element]) -> Sequence[Element]:
        raise NotImplementedError


class CountEvictor(_OneTime):
    """An evictor that keeps the `count` records that arrived last. With `after`, drops after the window function."""

    def __init__(self, count: int | Parameter, *, after: bool = False) -> None:
        super().__init__(after=after)
        self._count = Parameter.count(count, "the count of a CountEvictor", least=0)

    def _select(self, elements: Sequence[Element]) -> Sequence[Element]:
        return elements[max(0, len(elements) - self._count.value) :]


class TimeEvictor(_OneTime):
    """An evictor that keeps the records less than `keep` before the latest one, by their times.

    With `after`, drops after the window function.
    """

    def __init__(self, keep: Duration | Parameter, *, after: bool = False) -> None:
        super().__init__(after=after)
        self._keep = Parameter.duration(keep, "the time that a TimeEvictor keeps", min_ms=0)

    def _select(self, elements: Sequence[Element]) -> Sequence[Element]:
        cutoff_ms = max(time_ms for time_ms, _ in elements) - self._keep.value
        return [element for element in elements if element[0] > cutoff_ms]


class DeltaEvictor(_OneTime):
    """An evictor that keeps the records that differ by less than `threshold` from the one that arrived last.

    Args:
        threshold: the smallest difference to drop; 0 drops everything.
        delta: a function of a record and the last record that returns their difference.
        after: whether to drop records after the window function instead of before it.

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

    def _select(self, elements: Sequence[Element]) -> Sequence[Element]:
        threshold, last = self._threshold.value, elements[-1][1]
        return [element for element in elements if self._delta(element[1], last) < threshold]
