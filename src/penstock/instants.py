"""Instants: moments as datetimes, and as milliseconds since 1970."""

from __future__ import annotations

import datetime as dt
from typing import Final

__all__ = ["EPOCH", "instant_of", "milliseconds_of"]

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def instant_of(at_ms: int) -> dt.datetime:
    """The datetime of milliseconds since 1970. OverflowError beyond what a datetime can tell."""
    return EPOCH + at_ms * _MILLISECOND


def milliseconds_of(at: dt.datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    return (at - EPOCH) // _MILLISECOND
