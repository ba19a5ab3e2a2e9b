"""Parameters: options of windows, such as a size, that may change while the job runs."""

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
    """A duration or a number that can change while the job runs: a size, gap, lateness or threshold.

    Windows, triggers and evictors accept it wherever they take a duration or a number. A change applies from the next
    window on: open windows keep their bounds.

    >>> from penstock.windows.assigners import TumblingWindows
    >>> size = Parameter("5s")
    >>> windows = TumblingWindows(size)
    >>> windows.assign(None, 15_000)
    (Window(start=15000, end=20000),)
    >>> size.set("10s")
    >>> windows.assign(None, 15_000)
    (Window(start=10000, end=20000),)

    Attributes:
        value: the current value; durations in milliseconds.
        version: the number of changes.
        is_fractional: whether it may have a fractional part, like a threshold.

    """

    __slots__ = ("_given", "_readers", "is_fractional", "value", "version")

    def __init__(self, value: Any) -> None:
        self._given = value
        self._readers: tuple[Reader, ...] = ()
        self.value = value
        self.version = 0
        self.is_fractional = False

    @classmethod
    def duration(cls, given: Any, what: str, *, min_ms: int = 1) -> Parameter:
        """Return a duration parameter for your own assigner, trigger or evictor, which becomes a setting of the step.

        >>> from penstock.windows.triggers import Trigger
        >>> class Pause(Trigger):
        ...     def __init__(self, length):
        ...         self._length = Parameter.duration(length, "the length of a Pause")
        >>> Pause("5s")._length.value
        5000

        Args:
            given: the user's value: a timedelta, a string like "5s", or a `Parameter`.
            what: its name in error messages.
            min_ms: the smallest valid value, in milliseconds.

        Raises JobDefinitionError, which names `what`, for an invalid duration.

        """
        return _parameter(given, functools.partial(_read_duration, what, min_ms))

    @classmethod
    def count(cls, given: Any, what: str, *, least: int = 1) -> Parameter:
        """Return a parameter that is a whole number, such as a number of records, at least `least`; see `duration`."""
        return _parameter(given, functools.partial(_read_count, what, least))

    @classmethod
    def number(cls, given: Any, what: str) -> Parameter:
        """Return a parameter that is any number, such as a threshold; see `duration`."""
        found = _parameter(given, functools.partial(_read_number, what))
        found.is_fractional = True
        return found

    @property
    def given(self) -> Any:
        """The current value, as given by the user."""
        return self._given

    def check(self, value: Any) -> Any:
        """Return the `value` that a given value would become. Raises JobDefinitionError if it is invalid."""
        found = value
        for read in self._readers:
            found = read(value)
        return found

    def set(self, value: Any) -> None:
        """Change the value, given in the same form as at first. Raises JobDefinitionError if it is invalid."""
        found = self.check(value)
        self._given = value
        if found != self.value:
            self.value = found
            self.version += 1

    def read_with(self, read: Reader) -> None:
        """Add a reader, which checks a given value and converts it to `value`. Called by the owner of the parameter."""
        found = read(self._given)
        if self._readers and found != self.value:
            raise JobDefinitionError(
                f"The parameter {self._given!r} means {self.value} in one place, and {found} in another."
            )
        self._readers = (*self._readers, read)
        self.value = found


def _parameter(given: Any, read: Reader) -> Parameter:
    """Return the given value as a parameter, or the given parameter itself."""
    parameter = given if isinstance(given, Parameter) else Parameter(given)
    parameter.read_with(read)
    return parameter


def _read_duration(what: str, min_ms: int, value: Any) -> int:
    return milliseconds(value, what, min_ms=min_ms)


def _read_count(what: str, least: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise JobDefinitionError(f"{what} is {value!r}; give a whole number, at least {least}.")
    return value


def _read_number(what: str, value: Any) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise JobDefinitionError(f"{what} is {value!r}; give a number.")
    return value
