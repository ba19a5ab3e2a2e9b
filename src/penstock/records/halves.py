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

    def visit(low: int, high: int) -> None:
        try:
            work(low, high)
        except errors as e:
            if high - low == 1:
                refuse(low, e)
                return
        else:
            return
        middle = (low + high) // 2
        visit(low, middle)
        visit(middle, high)

    visit(0, rows)
