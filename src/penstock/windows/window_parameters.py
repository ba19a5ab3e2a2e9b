"""Parameters: what windows are made with, such as a size, which may change while the job runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from penstock.base.durations import milliseconds
from penstock.errors import JobDefinitionError

__all__ = ["Parameter"]

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
        is_fractional: whether it may be a number with a fraction, as thresholds are.

    """

    __slots__ = ("_given", "_readers", "is_fractional", "value", "version")

    def __init__(self, value: Any) -> None:
        self._given = value
        self._readers: tuple[Reader, ...] = ()
        self.value = value
        self.version = 0
        self.is_fractional = False

    @classmethod
    def duration(cls, given: Any, what: str, *, least_ms: int = 1) -> Parameter:
        """The parameter of a duration in a part of windows of your own, a setting of the step.

        >>> from penstock.windows.triggers import Trigger
        >>> class Pause(Trigger):
        ...     def __init__(self, length):
        ...         self._length = Parameter.duration(length, "the length of a Pause")
        >>> Pause("5s")._length.value
        5000

        Args:
            given: what the part was given: a timedelta, a number with a unit, or a `Parameter`.
            what: what it is, for errors.
            least_ms: the least that it can be, in milliseconds.

        JobDefinitionError, which names `what` it is, when it is no such duration.

        """
        return _parameter(given, functools.partial(_read_duration, what, least_ms))

    @classmethod
    def count(cls, given: Any, what: str, *, least: int = 1) -> Parameter:
        """As `duration`, of a whole number, such as one of records, that is at least `least`."""
        return _parameter(given, functools.partial(_read_count, what, least))

    @classmethod
    def number(cls, given: Any, what: str) -> Parameter:
        """As `duration`, of any number, such as a threshold."""
        found = _parameter(given, functools.partial(_read_number, what))
        found.is_fractional = True
        return found

    @property
    def given(self) -> Any:
        """The value in force, as it was given."""
        return self._given

    def check(self, value: Any) -> Any:
        """What a value would be. JobDefinitionError for what it cannot be."""
        found = value
        for read in self._readers:
            found = read(value)
        return found

    def set(self, value: Any) -> None:
        """Change the value; durations are given as at first. JobDefinitionError for what it cannot be."""
        found = self.check(value)
        self._given = value
        if found != self.value:
            self.value = found
            self.version += 1

    def read_with(self, read: Reader) -> None:
        """Called by what takes the parameter: how a given value is checked and becomes `value`."""
        found = read(self._given)
        if self._readers and found != self.value:
            raise JobDefinitionError(
                f"The parameter {self._given!r} means {self.value} in one place, and {found} in another."
            )
        self._readers = (*self._readers, read)
        self.value = found


def _parameter(given: Any, read: Reader) -> Parameter:
    """What was given as a parameter, or the parameter that was given."""
    parameter = given if isinstance(given, Parameter) else Parameter(given)
    parameter.read_with(read)
    return parameter


def _read_duration(what: str, least_ms: int, value: Any) -> int:
    return milliseconds(value, what, least_ms=least_ms)


def _read_count(what: str, least: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise JobDefinitionError(f"{what} is {value!r}; give a whole number, at least {least}.")
    return value


def _read_number(what: str, value: Any) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise JobDefinitionError(f"{what} is {value!r}; give a number.")
    return value
