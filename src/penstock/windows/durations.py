"""Durations: how long something lasts, as users write it, in whole milliseconds."""

from __future__ import annotations

import datetime as dt
import functools
import re
from typing import Final

__all__ = ["MAX_TIME", "MIN_TIME", "Duration", "to_ms"]

MIN_TIME: Final = -(2**63)
"""The time before all times, in milliseconds since 1970: the watermark of a stream that has none yet."""

MAX_TIME: Final = 2**63 - 1
"""The time after all times, in milliseconds since 1970: the watermark of a stream that has ended."""

Duration = dt.timedelta | str

_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"(-?)(\d+) ?(ms|[smhd])", re.ASCII)


def to_ms(duration: Duration) -> int:
    """How many milliseconds a duration lasts: a timedelta, or a text of a whole number and a unit.

    Units are ms, s, m (minutes), h and d.

    >>> to_ms("5s"), to_ms("500ms"), to_ms("-2h"), to_ms(dt.timedelta(minutes=1))
    (5000, 500, -7200000, 60000)

    Raises TypeError for what is neither, and ValueError for a text that cannot be read and for a timedelta that is not
    in whole milliseconds.
    """
    if isinstance(duration, dt.timedelta):
        whole, rest = divmod(duration, _MILLISECOND)
        if rest:
            raise ValueError(f"a duration of {duration} is not in whole milliseconds")
        return whole
    if isinstance(duration, str):
        return _text_to_ms(duration)
    raise TypeError(f"a duration is a timedelta or a text like '5s' or '500ms', not {duration!r}")


@functools.lru_cache(maxsize=1024)
def _text_to_ms(text: str) -> int:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"the duration {text!r} cannot be read; write a whole number and a unit (ms, s, m, h, d), such as '90s'"
        )
    sign, number, unit = match.groups()
    found = int(number) * _UNITS_MS[unit]
    if found > MAX_TIME:
        raise ValueError(f"the duration {text!r} is longer than time lasts")
    return -found if sign else found
