"""Display texts: times, durations and numbers for people."""

from __future__ import annotations

import datetime as dt
from typing import Final

__all__ = ["amount", "clock_time", "duration"]

_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(milliseconds: float) -> str:
    """Format a duration with its two largest units.

    >>> duration(3_725_000), duration(59_000), duration(250)
    ('1 h 2 min', '59 s', '0 s')
    """
    seconds = max(0, int(milliseconds / 1000))
    for place, (length, unit) in enumerate(_STEPS):
        if seconds >= length:
            rest = seconds % length
            if place + 1 < len(_STEPS) and rest >= _STEPS[place + 1][0]:
                smaller, smaller_unit = _STEPS[place + 1]
                return f"{seconds // length} {unit} {rest // smaller} {smaller_unit}"
            return f"{seconds // length} {unit}"
    return "0 s"


def clock_time(milliseconds: int | None) -> str:
    """Format a time in UTC.

    >>> clock_time(0), clock_time(None)
    ('1970-01-01 00:00:00', '')
    """
    if milliseconds is None:
        return ""
    return f"{dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC):%Y-%m-%d %H:%M:%S}"


def amount(number: float | None) -> str:
    """Format a number, shortened if it is large.

    >>> amount(0.0), amount(12.34), amount(1234.0), amount(2_500_000), amount(None)
    ('0', '12.3', '1,234', '2.5 M', '')
    """
    if number is None:
        return ""
    if abs(number) >= 1e9:
        return f"{number / 1e9:.1f} G"
    if abs(number) >= 1e6:
        return f"{number / 1e6:.1f} M"
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}"
