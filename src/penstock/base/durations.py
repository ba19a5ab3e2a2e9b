"""Durations: convert between readable durations and milliseconds."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final, TypeAlias

from penstock.errors import JobDefinitionError

__all__ = ["Duration", "duration_text", "milliseconds", "seconds_text"]

Duration: TypeAlias = dt.timedelta | str
"""A timedelta, or a number with a unit: "500ms", "5s", "10m", "2h", "1d"."""

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def milliseconds(duration: Duration, what: str, *, min_ms: int = 0) -> int:
    """Convert a duration to milliseconds. Raises JobDefinitionError, which names `what`, if it is invalid or too short.

    >>> milliseconds("1.5s", "the size of a window")
    1500
    """
    found: float | None = None
    if isinstance(duration, dt.timedelta):
        found = duration / _MILLISECOND
    elif isinstance(duration, str) and (match := _FORM.fullmatch(duration.strip())):
        found = float(match.group(1)) * _UNITS_MS[match.group(2)]
    if found is None:
        raise JobDefinitionError(
            f"{what} is {duration!r}; give a timedelta, or a number with a unit: '500ms', '5s', '10m', '2h', '1d'."
        )
    if found != int(found):
        raise JobDefinitionError(f"{what} is {duration!r}; time is counted in whole milliseconds.")
    if found < min_ms:
        raise JobDefinitionError(f"{what} is {duration!r}; it must be at least {min_ms} ms.")
    return int(found)


def duration_text(duration_ms: int) -> str:
    """Format a duration in the largest unit of which it is a whole number.

    >>> duration_text(90_000), duration_text(3_600_000), duration_text(0)
    ('90s', '1h', '0ms')
    """
    unit, size_ms = next(
        (
            (unit, size_ms)
            for unit, size_ms in reversed(_UNITS_MS.items())
            if duration_ms and not duration_ms % size_ms
        ),
        ("ms", 1),
    )
    return f"{duration_ms // size_ms}{unit}"


def seconds_text(seconds: float) -> str:
    """Format a short time as people read it, in milliseconds below a second.

    >>> seconds_text(0.0042), seconds_text(0.25), seconds_text(2.5)
    ('4.2 ms', '250 ms', '2.50 s')
    """
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    in_ms = seconds * 1000
    return f"{in_ms:.1f} ms" if in_ms < 100 else f"{in_ms:.0f} ms"
