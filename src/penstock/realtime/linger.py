"""Linger: while many records arrive, the rounds of a slot begin some time apart, not for every few records.

A round of a few records costs hardly less than one of a hundred. Where records come one by one nothing waits.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Linger"]

_APART_S: Final = 0.006
# This many records at once count as many, until fewer have come for this time.
_MANY: Final = 8
_MANY_FOR_S: Final = 0.05


class Linger:
    """When a slot takes the records that have arrived. Any thread may note arrivals; one thread waits."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._begun_s = 0.0

    def note(self, records: int) -> None:
        """Note how many records have arrived at once."""
        if records >= _MANY:
            self._until_s = time.monotonic() + _MANY_FOR_S

    def wait(self) -> None:
        """Wait until some time after the last round has begun, while many records come."""
        now_s = time.monotonic()
        left_s = self._begun_s + _APART_S - now_s
        if now_s < self._until_s and left_s > 0.0:
            time.sleep(left_s)

    def begin(self) -> None:
        """Note that a round begins."""
        self._begun_s = time.monotonic()
