"""Intake: limits the bytes that wait for a slot by the speed of the slot."""

from __future__ import annotations

from typing import Final

__all__ = ["Intake"]

# A slot may have about as much input waiting as it processes in this time; an interval ends only when all is done.
_WAITING_S: Final = 1.0
_LEAST_BYTES: Final = 256 << 10
# The limit before the speed of a slot is known.
_FIRST_BYTES: Final = 1 << 20
# Shorter rounds do not tell the speed of large ones.
_LEAST_ROUND_S: Final = 0.002
_NEWEST_SHARE: Final = 0.5


class Intake:
    """The intake of a slot.

    `waiting_bytes` is how much may wait for it, at most `max_bytes`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: Final = max_bytes
        self._bytes_per_s: float | None = None
        self.waiting_bytes = min(_FIRST_BYTES, max_bytes)

    def note(self, size: int, seconds: float) -> None:
        """Note a round with an input of some bytes."""
        if not size or seconds < _LEAST_ROUND_S:
            return
        rate = size / seconds
        known = rate if self._bytes_per_s is None else self._bytes_per_s
        self._bytes_per_s = known + _NEWEST_SHARE * (rate - known)
        wanted = max(_LEAST_BYTES, int(self._bytes_per_s * _WAITING_S))
        self.waiting_bytes = min(wanted, self._max_bytes)
