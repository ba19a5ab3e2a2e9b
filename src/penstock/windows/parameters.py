"""Parameters: what windows are made with, such as a size, which may change while the job runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from penstock.errors import JobDefinitionError
from penstock.windows.durations import to_ms

__all__ = ["Parameter", "count_of", "duration_of", "number_of"]

Reader = Callable[[Any], Any]


class Parameter:
    """A duration or a number that can be changed while the job runs: sizes, gaps, lateness, thresholds.

    It can be given wherever windows, triggers and evictors take one. A change counts from the next window on: windows
    that are open keep their bounds.

    >>> from penstock.windows.assigners import TumblingWindows
    >>> size = Parameter("5s")
    >>> windows = TumblingWindows(size)
    >>> windows.assign(None, 15_000)
    (Window(start=15000, end=20000),)
    >>> size.set("10s")
    >>> windows.assign(None, 15_000)
    (Window(start=10000, end=20000),)

    Attributes:
        value: the value in force; durations in milliseconds.
        version: how often it has changed.

    """

    __slots__ = ("_given", "_readers", "value", "version")

    def __init__(self, value: Any) -> None:
        self._given = value
        self._readers: tuple[Reader, ...] = ()
        self.value = value
        self.version = 0

    def set(self, value: Any) -> None:
        """Change the value; durations are given as at first. What is refused raises ValueError or TypeError."""
        found = value
        for read in self._readers:
            found = read(value)
        self._given = value
        if found != self.value:
            self.value = found
            self.version += 1

    def read_with(self, read: Reader) -> None:
        """Called by what takes the parameter: how a given value is checked and becomes `value`."""
        found = read(self._given)
        if self._readers and found != self.value:
            raise ValueError(f"{self._given!r} means {self.value} elsewhere, and {found} here")
        self._readers = (*self._readers, read)
        self.value = found


def duration_of(given: Any, what: str, *, at_least: int | None = 1) -> Parameter:
    """The parameter of a duration, in milliseconds. JobDefinitionError when it is none, or too short."""
    return _parameter(given, what, functools.partial(_read_duration, at_least))


def count_of(given: Any, what: str) -> Parameter:
    """The parameter of a number of records. JobDefinitionError when it is no whole number, or less than 1."""
    return _parameter(given, what, _read_count)


def number_of(given: Any, what: str) -> Parameter:
    """The parameter of a threshold. JobDefinitionError when it is no number."""
    return _parameter(given, what, _read_number)


def _parameter(given: Any, what: str, read: Reader) -> Parameter:
    """What was given as a parameter, or the parameter that was given."""
    parameter = given if isinstance(given, Parameter) else Parameter(given)
    try:
        parameter.read_with(read)
    except (TypeError, ValueError) as e:
        raise JobDefinitionError(f"The {what} cannot be used: {e}.") from e
    return parameter


def _read_duration(at_least: int | None, value: Any) -> int:
    found = to_ms(value)
    if at_least is not None and found < at_least:
        raise ValueError(f"{value!r} is too short; it is at least {at_least} ms")
    return found


def _read_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a number of records is an int, not {value!r}")
    if value < 1:
        raise ValueError(f"a number of records is at least 1, not {value}")
    return value


def _read_number(value: Any) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a threshold is a number, not {value!r}")
    if math.isnan(value):
        raise ValueError("a threshold is a number, not NaN")
    return value
