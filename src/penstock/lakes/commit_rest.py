"""Commit rest: how long a driver waits before it retries a commit that another writer has overtaken."""

from __future__ import annotations

import random
import time
from typing import Final

__all__ = ["ATTEMPTS", "CommitRest"]

ATTEMPTS: Final = 30
_FIRST_WAIT_S: Final = 0.02
_LONGEST_WAIT_S: Final = 2.0


class CommitRest:
    """Waits that grow, for up to `ATTEMPTS` attempts."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self) -> bool:
        """Wait before another attempt; return False if there were enough."""
        self._taken += 1
        if self._taken == ATTEMPTS:
            return False
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (self._taken - 1))
        # Varied, so that the writers do not collide again.
        time.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311  # no secret
        return True
