"""Stream lags: how much data waits in the source of each stream, and for how long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.connectors.custom_log import CustomLog
from penstock.metrics.batch_metrics import Lag
from penstock.runtime.bound_source import BoundSource
from penstock.sources.base import ReplayableLog
from penstock.sources.kafka_log import KafkaLog
from penstock.spark.progress import SourceProgress

__all__ = ["LagClock", "StreamLags", "Waiting", "log_waiting", "topic_waiting"]


class Waiting(NamedTuple):
    """The amount that waits in a source, the position of its reader, and the end, in a unit of the source."""

    lag: Lag
    position: int
    end: int


def topic_waiting(log: KafkaLog | CustomLog, progress: SourceProgress) -> Waiting | None:
    """Return how much waited in all partitions when the micro-batch was planned; None if Spark does not say."""
    if not progress.end or not progress.latest:
        return None
    ends, latest = log.decode(progress.end), log.decode(progress.latest)
    behind = sum(max(0, at - ends.get(partition, 0)) for partition, at in latest.items())
    position = sum(ends.values())
    return Waiting(Lag(records=behind), position, position + behind)


def log_waiting(log: ReplayableLog[Any], progress: SourceProgress) -> Waiting | None:
    """Return how much waits in a log at this moment; None if the log does not say."""
    if not progress.end:
        return None
    position = log.decode(progress.end)
    lag = log.lag(position)
    if not lag:
        return None
    return Waiting(Lag(**lag), position, position + int(lag.get("files", lag.get("bytes", 0))))


class LagClock:
    """Measures how long the oldest waiting data in a log has been waiting, from the ends of the log over time.

    It knows only what it has seen: data that was there before the first look counts from that look on.
    """

    # Beyond this number of looks it forgets every second one, and spaces the next ones as far apart.
    _MOST: Final = 512

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = []
        self._apart_s = 0.0
        self._first_end: int | None = None

    def see(self, at_s: float, end: int) -> None:
        """Record the end of the log at a time."""
        if self._first_end is None:
            self._first_end = end
        if self._looks and (end <= self._looks[-1][1] or at_s < self._looks[-1][0] + self._apart_s):
            return
        self._looks.append((at_s, end))
        if len(self._looks) > self._MOST:
            self._looks = self._looks[::2]
            self._apart_s = (at_s - self._looks[0][0]) / len(self._looks)

    def waited_s(self, at_s: float, position: int) -> float:
        """Return for how many seconds anything has been waiting after a position; 0 if nothing waits."""
        while self._looks and self._looks[0][1] <= position:
            if len(self._looks) == 1:
                # All is read, and the last look says where new data starts.
                self._apart_s = 0.0
                return 0.0
            self._looks.pop(0)
        return max(0.0, at_s - self._looks[0][0]) if self._looks else 0.0

    def knows_less(self, position: int) -> bool:
        """Return whether the oldest data after a position was found at the first look, so it may be older than that."""
        return self._first_end is not None and position < self._first_end


class StreamLags:
    """Finds the lag of streams. It lives as long as a run, so that rescalings do not reset its clocks."""

    def __init__(self) -> None:
        self._clocks: Final[dict[str, LagClock]] = {}
        self._newest_ms: Final[dict[str, dict[str, int]]] = {}

    def see_times(self, newest_ms: Mapping[str, Mapping[str, int]]) -> None:
        """Record the times of the newest records that were read, by stream and partition, if they are known."""
        for stream, by_partition in newest_ms.items():
            self._newest_ms.setdefault(stream, {}).update(by_partition)

    def find(
        self, sources: Sequence[BoundSource], reported: Sequence[SourceProgress], planned_s: float
    ) -> dict[str, Lag]:
        """Return what waits in each source after the newest micro-batch or interval, and for how long.

        `reported` has the positions, `planned_s` when the micro-batch was planned, in seconds since 1970. Ends of
        topics are known as of then.
        """
        found: dict[str, Lag] = {}
        now_s = time.time()
        for source, progress in zip(sources, reported, strict=False):
            name, log = source.node.name, source.log
            if isinstance(log, KafkaLog | CustomLog):
                waiting, seen_s = topic_waiting(log, progress), planned_s
            else:
                waiting, seen_s = log_waiting(log, progress), now_s
            if waiting is None:
                continue
            clock = self._clocks.setdefault(name, LagClock())
            clock.see(seen_s, waiting.end)
            waited_s = clock.waited_s(now_s, waiting.position)
            if isinstance(log, KafkaLog) and clock.knows_less(waiting.position):
                waited_s = max(waited_s, self._age_s(log, name, progress, now_s))
            found[name] = msgspec.structs.replace(waiting.lag, seconds=round(waited_s, 3))
        return found

    def _age_s(self, log: KafkaLog, stream: str, progress: SourceProgress, now_s: float) -> float:
        """Return how old the oldest record that waits may be: younger than the newest that was read before it."""
        at, latest = log.decode(progress.end), log.decode(progress.latest)
        times_ms = self._newest_ms.get(stream, {})
        known_ms = [
            times_ms[name] for name, end in latest.items() if end > at.get(name, 0) and name in times_ms
        ]
        return max(0.0, now_s - min(known_ms) / 1000) if known_ms else 0.0
