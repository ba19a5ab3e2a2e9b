"""Interval meter: measures the latency of the output of a slot in an interval, and how it spends its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.metrics.latency import LatencyCounter
from penstock.metrics.source_times import SourceTimes
from penstock.metrics.task_reports import (
    EMITTED,
    LAG,
    LATENCY,
    SLOT_TIME,
    SlotTime,
    WaitedFor,
    encode_report,
)
from penstock.runtime.packed_rows import DEAD_LETTERS
from penstock.runtime.writer import Report, Writer
from penstock.sources.topic_lag import TopicLag

__all__ = ["IntervalMeter"]

# Above this number, points of output that is not visible yet are merged.
_MOST_WAITING: Final = 4096


class IntervalMeter:
    """The meter of one interval of a slot. All its times are for metrics only.

    `causes` are the source times of the records of the present round, or the time of its timer. `rounds_s` is how long
    rounds have taken, with their sinks, `storing_s` how long the slot has stored state, some of it of the interval
    before.

    Args:
        writer: the writer of the job, which knows its sinks.
        task: the number of the slot.

    """

    def __init__(self, writer: Writer, task: int) -> None:
        self._task: Final = task
        self._at_once: Final = frozenset(
            name for name, (sink, _, _) in writer.sinks.items() if not sink.exactly_once
        )
        self._latencies: Final[dict[str, LatencyCounter]] = {}
        self._emitted: Final[dict[str, list[tuple[int, int]]]] = {}
        self._slot_time = SlotTime()
        self._lags: Mapping[str, TopicLag] = {}
        self.causes: SourceTimes | None = None
        self.rounds_s = 0.0
        self.storing_s = 0.0
        self.sinks_s = 0.0

    def add_output(self, sink: str, records: int, seconds: float) -> None:
        """Add records of the present round that a sink has taken, and how many seconds it took."""
        self.sinks_s += seconds
        # Timers that fell due before the slot ran for the first time have no time.
        if self.causes is None or sink == DEAD_LETTERS or not records:
            return
        points = self.causes.spread(records)
        if sink not in self._at_once:
            self._emit(sink, points)
            return
        counter = self._latencies.get(sink)
        if counter is None:
            counter = self._latencies[sink] = LatencyCounter()
        counter.add(points, time.time_ns() / 1e6)

    def _emit(self, sink: str, points: list[tuple[int, int]]) -> None:
        known = self._emitted.setdefault(sink, [])
        known += points
        if len(known) > _MOST_WAITING:
            self._emitted[sink] = list(SourceTimes.of_points(known).points())

    def end(self, reading_s: float, lags: Mapping[str, TopicLag]) -> None:
        """Note the end of the interval: the time spent reading, and the lag of topics, by stream."""
        rounds_s = max(0.0, self.rounds_s - self.sinks_s)
        self._slot_time = SlotTime(reading_s, rounds_s, self.sinks_s, self.storing_s)
        self._lags = lags

    def reports(self) -> Iterator[Report]:
        """Yield the reports for the driver."""
        for sink, counter in self._latencies.items():
            yield LATENCY, sink, self._task, 0, encode_report(counter.latency)
        for sink, points in self._emitted.items():
            yield EMITTED, sink, self._task, 0, encode_report(SourceTimes.of_points(points))
        for stream, lag in self._lags.items():
            waited_s = None if lag.waited_ms is None else lag.waited_ms / 1000
            yield LAG, stream, self._task, lag.records, encode_report(WaitedFor(waited_s))
        yield SLOT_TIME, "", self._task, 0, encode_report(self._slot_time)
