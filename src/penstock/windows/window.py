"""The window: an interval of time that groups records."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["GLOBAL", "MAX_TIME", "MIN_TIME", "Window"]

MIN_TIME: Final = -(2**63)
"""The time before all times, in milliseconds since 1970: the watermark of a stream before its first."""

MAX_TIME: Final = 2**63 - 1
"""The time after all times, in milliseconds since 1970: the watermark of a stream that has ended."""


class Window(NamedTuple):
    """An interval of time from `start` to `end`, exclusive, in milliseconds since 1970.

    >>> Window(10_000, 15_000).max_timestamp
    14999

    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond in the window; for the global window, the end of time."""
        end = self.end
        return end - 1 if end != MAX_TIME else MAX_TIME


GLOBAL: Final = Window(MIN_TIME, MAX_TIME)
"""The window for all records, without an end."""
