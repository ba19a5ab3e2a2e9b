"""Linger: while many records come, the rounds of a slot begin at some distance, and not for each few records.

A round of a few records costs hardly less than one of a hundred. Where records come one by one nothing waits.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Linger"]

_APART_S: Final = 0.006
# So many records at once are many, for as long as no fewer come in this time.
_MANY: Final = 8
_MANY_FOR_S: Final = 0.05


class Linger:
    """When a slot takes what has come. Any thread may note what comes; one waits."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._begun_s = 0.0

    def note(self, records: int) -> None:
        """Note that this many records have come at once."""
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
