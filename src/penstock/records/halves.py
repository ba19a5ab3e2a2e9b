"""Halves: work on many rows at once, and find the rows that make it fail."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["work_by_halves"]


def work_by_halves(
    rows: int,
    work: Callable[[int, int], None],
    refuse: Callable[[int, Exception], None],
    errors: tuple[type[Exception], ...] = (Exception,),
) -> None:
    """Work on all rows at once, or on halves of them where that fails, until each row that fails is isolated.

    Args:
        rows: the number of rows.
        work: called with ranges of rows, in order: the first row, and the one after the last.
        refuse: called in the same order with each row that fails alone, and its error.
        errors: the errors that are about rows; others are raised.

    >>> numbers = []
    >>> words = ["1", "2", "three", "4"]
    >>> work_by_halves(
    ...     4,
    ...     lambda low, high: numbers.extend([int(word) for word in words[low:high]]),
    ...     lambda row, error: print(row, error),
    ... )
    2 invalid literal for int() with base 10: 'three'
    >>> numbers
    [1, 2, 4]

    """
    # A function within this one that calls itself would be a cycle, which keeps the rows in memory until Python's
    # collector runs. In real time that is once in minutes.
    waiting = [(0, rows)]
    while waiting:
        low, high = waiting.pop()
        try:
            work(low, high)
        except errors as e:
            if high == low:
                raise
            if high - low == 1:
                refuse(low, e)
            else:
                middle = (low + high) // 2
                waiting += [(middle, high), (low, middle)]
