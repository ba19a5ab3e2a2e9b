"""Watermark tracker: derive watermarks from the event times that a task reads, and reject invalid times."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.instants import instant_of
from penstock.operators.event_times import (
    all_are_in_range,
    are_out_of_range,
    no_time_reason,
    out_of_range_reason,
    times_ms,
)
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.streams.graph import SourceNode
from penstock.streams.watermark_strategies import WatermarkTracker

__all__ = ["Timing"]


class Timing:
    """The event times that one task reads from a stream in one micro-batch, which was planned at `now_ms`.

    With `by_partition` each partition of the source has its own watermark. Otherwise the stream has one.
    """

    def __init__(self, node: SourceNode, now_ms: int | None, *, by_partition: bool) -> None:
        assert node.watermarks is not None
        assert node.time is not None
        self._node: Final = node
        self._strategy: Final = node.watermarks
        self._field: Final = node.time
        self._now_ms: Final = now_ms
        self._by_partition: Final = by_partition
        self._trackers: Final[dict[str, WatermarkTracker | None]] = {}

    def take(self, records: Records) -> tuple[Records, list[DeadLetter]]:
        """Track the times of records. Return the records with a valid time, and the dead letters of the others."""
        times, is_missing = times_ms(records.batch.column(self._field))
        reasons: dict[int, str] = {
            int(row): no_time_reason(self._field) for row in np.flatnonzero(is_missing)
        }
        if not all_are_in_range(times):
            wrong = np.flatnonzero(are_out_of_range(times))
            reasons |= {int(row): out_of_range_reason(int(times[row])) for row in wrong}
        bound_ms = self._strategy.max_ahead_ms
        if bound_ms is not None and self._now_ms is not None:
            ahead = np.flatnonzero((times > self._now_ms + bound_ms) & ~is_missing & ~are_out_of_range(times))
            reasons |= {int(row): self._ahead(int(times[row]), self._now_ms) for row in ahead}
        letters = []
        if reasons:
            letters = [
                records.dead_letter(row, reasons[row], self._node.record_type) for row in sorted(reasons)
            ]
            kept = np.setdiff1d(np.arange(len(records)), np.fromiter(reasons, np.int64, len(reasons)))
            records, times = records.take(kept), times[kept]
        if len(records):
            self._track(records, times)
        return records, letters

    def _track(self, records: Records, times: npt.NDArray[np.int64]) -> None:
        name = records.partition if self._by_partition else ""
        if name not in self._trackers:
            self._trackers[name] = self._strategy.tracker()
        tracker = self._trackers[name]
        if tracker is not None:
            tracker.see(times, lambda: self._node.record_type.objects(records.batch))

    def watermarks(self) -> dict[str, int]:
        """Return the watermark after all records, by partition. Called once, at the end."""
        found = {
            name: tracker.watermark_ms() for name, tracker in self._trackers.items() if tracker is not None
        }
        return {name: at for name, at in found.items() if at is not None}

    def _ahead(self, time_ms: int, now_ms: int) -> str:
        return (
            f"the event time {instant_of(time_ms).isoformat()} is {time_ms - now_ms} ms ahead of the clock, more than "
            f"the {self._strategy.max_ahead_ms} ms that with_max_ahead allows"
        )
