"""Topic lag: how many records a reader that follows a topic has not read yet, and the age of the oldest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["PartitionLook", "TopicLag", "lag_of"]


class TopicLag(NamedTuple):
    """The records that wait in the partitions that a reader follows.

    `records` counts it, including the marks of transactions. `waited_ms` is how long the oldest has
    been waiting, at most; None if nothing of its partition was read so far.
    """

    records: int
    waited_ms: int | None


@dataclass
class PartitionLook:
    """The state of a partition for its reader, in offsets and milliseconds since 1970.

    `at` is the next offset to read, and `end` where the broker had nothing more when it last said so; `broker_end` is
    the end that it told with the last records. `caught_up_ms` is when everything was read, for the last time, and
    `newest_ms` the time of the newest record read; None if not known.
    """

    at: int
    end: int
    broker_end: int
    caught_up_ms: int | None
    newest_ms: int | None

    @property
    def behind(self) -> int:
        """The number of offsets that are not read yet."""
        return 0 if self.end >= self.at else max(0, self.broker_end - self.at)

    @property
    def since_ms(self) -> int | None:
        """The time after which the unread records arrived; None if it is not known."""
        known = [at_ms for at_ms in (self.caught_up_ms, self.newest_ms) if at_ms is not None]
        return max(known, default=None)


def lag_of(partitions: Iterable[PartitionLook], now_ms: int) -> TopicLag:
    """Return the lag of some partitions.

    A record that waits is younger than the newest that was read, if the times in a partition ascend, and it came after
    everything had been read.
    """
    waiting = [one for one in partitions if one.behind]
    ages_ms = [None if one.since_ms is None else now_ms - one.since_ms for one in waiting]
    known_ms = [age_ms for age_ms in ages_ms if age_ms is not None]
    waited_ms = max(known_ms, default=0) if len(known_ms) == len(ages_ms) else None
    return TopicLag(sum(one.behind for one in waiting), waited_ms)
