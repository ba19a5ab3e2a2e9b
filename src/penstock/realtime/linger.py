"""Linger: while many records come, the threads of an engine work at common moments, not for each few records.

A round of a few records costs hardly less than one of a hundred. At each tick of the machine's clock readers take what
has come, and a little later slots take what the readers have sent. Where records come one by one nothing waits.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SLOTS_AFTER_S", "Linger"]

_TICK_S: Final = 0.006
SLOTS_AFTER_S: Final = 0.002
"""How long after a tick slots take what readers have sent."""
# So many records at once are many, for as long as no fewer come in this time.
_MANY: Final = 8
_MANY_FOR_S: Final = 0.05


class Linger:
    """When the threads of an engine work. One thread notes what has come; any may wait."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def note(self, records: int) -> None:
        """Note that this many records have come at once."""
        if records >= _MANY:
            self._until_s = time.monotonic() + _MANY_FOR_S

    def wait(self, after_s: float) -> None:
        """Wait until a time after the next tick, while many records come."""
        now_s = time.monotonic()
        if now_s < self._until_s:
            time.sleep(_TICK_S - (now_s - after_s) % _TICK_S)
