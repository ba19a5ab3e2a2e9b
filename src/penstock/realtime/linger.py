"""Linger: while many records come, a slot waits for those of all readers before a round, but not for long.

A round of a few records costs hardly less than one of a hundred. Records that come one by one do not wait.
"""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import Final

from penstock.realtime.inbox import Inbox

__all__ = ["Linger"]

_APART_S: Final = 0.006
# A reader that sends at least this many records at once sends many, until it has sent fewer for this long.
_MANY: Final = 8
_MANY_FOR_S: Final = 0.05


class Linger:
    """Decides when a slot takes its input: when each reader that sends many records has sent, or time is up.

    A round for the records of each reader alone would double the rounds of two readers. The time counts from the
    beginning of the last round.
    """

    def __init__(self) -> None:
        self._many_until_s: Final[dict[str, float]] = {}
        self._begun_s = 0.0

    def note(self, reader: str, records: int) -> None:
        """Note that this many records of a reader have come at once."""
        if records >= _MANY:
            self._many_until_s[reader] = time.monotonic() + _MANY_FOR_S

    def wait(self, inbox: Inbox, reading: AbstractSet[str]) -> None:
        """Wait for the readers that have sent many records, as far as they are among those that are `reading`."""
        readers, left_s = self._awaited(reading)
        if readers and left_s > 0.0:
            inbox.wait_for_all(readers, left_s)

    def is_over(self, inbox: Inbox, reading: AbstractSet[str]) -> bool:
        """Return whether `wait` would not wait."""
        readers, left_s = self._awaited(reading)
        return left_s <= 0.0 or inbox.has_all(readers)

    def _awaited(self, reading: AbstractSet[str]) -> tuple[set[str], float]:
        """Return the readers that have sent many records, and how long to wait for them at most."""
        now_s = time.monotonic()
        readers = {reader for reader in reading if now_s < self._many_until_s.get(reader, 0.0)}
        return readers, self._begun_s + _APART_S - now_s

    def begin(self) -> None:
        """Note that a round begins."""
        self._begun_s = time.monotonic()
