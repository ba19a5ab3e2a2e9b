"""Assigned partition: where a consumer is in one partition of a topic, and the messages of it that wait."""

from __future__ import annotations

import bisect
from typing import Any, Final

from penstock.sources.gathered_messages import OFFSET

__all__ = ["MAX_SKIPPED", "AssignedPartition"]

MAX_SKIPPED: Final = 20_000
"""A worker this many records behind reads them faster than it seeks. Tasks of a partition move between workers."""


class AssignedPartition:
    """A partition that the consumer is assigned to, and the messages of it that wait to be returned.

    `at` is where the last range ended. All records before `received` were received, except those in `lost`, ranges of
    offsets that the broker had deleted. `end` is where the broker had nothing more when it said so last, `broker_end`
    the end that it told with the last records, `newest_ms` the newest time of what was taken, and `caught_up_ms` when
    all was.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.received = at
        self.end = -1
        self.broker_end = -1
        self.newest_ms: int | None = None
        self.caught_up_ms: int | None = None
        self.messages: list[Any] = []
        self.lost: list[tuple[int, int]] = []

    def add(self, messages: list[Any]) -> None:
        """Add messages that follow the others."""
        self.received = max(self.received, messages[-1].offset() + 1)
        if messages[0].offset() < self.at:
            # Some of them were to be skipped before they arrived.
            messages = messages[bisect.bisect_left(messages, self.at, key=OFFSET) :]
        self.messages += messages

    def skip(self, start: int) -> bool:
        """Begin at an offset, by skipping a few messages; return False when the offset is too far away."""
        if not self.at <= start <= self.at + MAX_SKIPPED:
            return False
        self.take(start)
        self.take_lost(start)
        self.at = start
        return True

    def lose(self, first: int) -> None:
        """Note that the records before an offset that were not received were deleted."""
        self.lost.append((self.received, first))
        self.received = first

    def lose_to(self, end: int) -> None:
        """Note that no more records before an offset will arrive."""
        if self.received < end:
            self.lose(end)

    def take_lost(self, end: int) -> list[tuple[int, int]]:
        """Take the ranges before an offset that were deleted."""
        taken = [(first, min(last, end)) for first, last in self.lost if first < end]
        self.lost = [(max(first, end), last) for first, last in self.lost if last > end]
        return taken

    def take(self, end: int) -> list[Any]:
        """Take the messages before an offset."""
        messages = self.messages
        count = len(messages)
        if count and messages[-1].offset() >= end:
            count = bisect.bisect_left(messages, end, key=OFFSET)
        taken, self.messages = messages[:count], messages[count:]
        return taken
