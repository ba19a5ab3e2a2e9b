"""Times as people read them."""

from __future__ import annotations

import datetime as dt

__all__ = ["format_instant", "format_milliseconds"]


def format_instant(at: dt.datetime) -> str:
    """Format a moment in UTC, to the millisecond.

    >>> format_instant(dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC))
    '2026-11-21T12:00:00.000Z'
    """
    return at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def format_milliseconds(ms: int) -> str:
    """Format milliseconds since 1970 as a moment in UTC.

    >>> format_milliseconds(0)
    '1970-01-01T00:00:00.000Z'
    """
    return format_instant(dt.datetime.fromtimestamp(ms / 1000, dt.UTC))
