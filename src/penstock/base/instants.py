"""Instants: convert between datetimes and milliseconds since 1970."""

from __future__ import annotations

import datetime as dt
from typing import Final

__all__ = ["EPOCH", "FIRST_MS", "LAST_MS", "MILLISECOND", "instant_of", "milliseconds_of", "nearest_instant"]

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND: Final = dt.timedelta(milliseconds=1)


def instant_of(at_ms: int) -> dt.datetime:
    """Convert milliseconds since 1970 to a datetime. Raises OverflowError outside the range of datetimes."""
    return EPOCH + at_ms * MILLISECOND


def nearest_instant(at_ms: int) -> dt.datetime:
    """Convert milliseconds since 1970 to a datetime, or to the nearest possible one."""
    return instant_of(min(max(at_ms, FIRST_MS), LAST_MS))


def milliseconds_of(at: dt.datetime) -> int:
    """Convert a datetime to milliseconds since 1970, rounded down."""
    return (at - EPOCH) // MILLISECOND


FIRST_MS: Final = milliseconds_of(dt.datetime.min.replace(tzinfo=dt.UTC))
LAST_MS: Final = milliseconds_of(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The first and the last millisecond that a datetime can express."""
