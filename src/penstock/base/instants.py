"""Instants: moments as datetimes, and as milliseconds since 1970."""

from __future__ import annotations

import datetime as dt
from typing import Final

__all__ = ["EPOCH", "FIRST_MS", "LAST_MS", "MILLISECOND", "instant_of", "milliseconds_of", "nearest_instant"]

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND: Final = dt.timedelta(milliseconds=1)


def instant_of(at_ms: int) -> dt.datetime:
    """The datetime of milliseconds since 1970. OverflowError beyond what a datetime can tell."""
    return EPOCH + at_ms * MILLISECOND


def nearest_instant(at_ms: int) -> dt.datetime:
    """The datetime of milliseconds since 1970, or the nearest to it that there is."""
    return instant_of(min(max(at_ms, FIRST_MS), LAST_MS))


def milliseconds_of(at: dt.datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    return (at - EPOCH) // MILLISECOND


FIRST_MS: Final = milliseconds_of(dt.datetime.min.replace(tzinfo=dt.UTC))
LAST_MS: Final = milliseconds_of(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The first and the last millisecond that a datetime can tell."""
