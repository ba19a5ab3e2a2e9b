"""Times as people read them."""

from __future__ import annotations

import datetime as dt

__all__ = ["instant_text", "shown_instant"]


def shown_instant(at: dt.datetime) -> str:
    """A moment in UTC, to the millisecond.

    >>> shown_instant(dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC))
    '2026-11-21T12:00:00.000Z'
    """
    return at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def instant_text(ms: int) -> str:
    """Milliseconds since 1970 as a moment in UTC.

    >>> instant_text(0)
    '1970-01-01T00:00:00.000Z'
    """
    return shown_instant(dt.datetime.fromtimestamp(ms / 1000, dt.UTC))
