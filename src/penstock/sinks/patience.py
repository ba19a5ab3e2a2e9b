"""Patience: how long a task tries again to write what servers could not write at once."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Patience"]

_FIRST_REST_S: Final = 0.1
_LONGEST_REST_S: Final = 5.0


class Patience:
    """Rests that grow, until nothing at all could be written for `retry_s` seconds."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s: Final = retry_s
        self.begin()

    def begin(self) -> None:
        """Start over, since something was written."""
        self._deadline = time.monotonic() + self._retry_s
        self._rest_s = _FIRST_REST_S

    def rest(self, *, has_progressed: bool) -> bool:
        """Rest before another try; return False instead when it has been long enough."""
        if has_progressed:
            self.begin()
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._rest_s)
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        return True
