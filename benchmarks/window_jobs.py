"""The jobs of the benchmarks of windows: the mean of each key in each window, on three code paths; distinct counts.

Jobs whose names begin with `open` have windows that stay open while event time advances by a month.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import penstock as ps

__all__ = [
    "ACCURACY",
    "OPEN_MS",
    "SIZE_MS",
    "columns",
    "custom",
    "distinct",
    "open_columns",
    "open_records",
    "records",
]

SIZE_MS = 10_000
ACCURACY = 0.03
OPEN_MS = 30 * 24 * 3600 * 1000


@dataclass
class Reading:
    """A value with its time in milliseconds since 1970."""

    key: int
    at: int
    value: float


@dataclass
class Total:
    """The number of some values, and their sum."""

    count: int
    total: float


class MeanOf(ps.AggregateFunction[Reading, Total, float]):
    """The mean, in plain Python."""

    def create_accumulator(self) -> Total:
        """Return the total of no values."""
        return Total(0, 0.0)

    def add(self, value: Reading, accumulator: Total) -> Total:
        """Add a value."""
        return Total(accumulator.count + 1, accumulator.total + value.value)

    def get_result(self, accumulator: Total) -> float:
        """Return the mean."""
        return accumulator.total / accumulator.count

    def merge(self, a: Total, b: Total) -> Total:
        """Merge the totals of two windows."""
        return Total(a.count + b.count, a.total + b.total)


class AtTheEnd(ps.Trigger):
    """Fires at the end of the window, as the default trigger does, and counts its records."""

    state_type = int

    def on_record(
        self,
        record: Reading,  # noqa: ARG002  # as declared
        time_ms: int,  # noqa: ARG002
        window: ps.Window,
        ctx: ps.TriggerContext,
    ) -> ps.TriggerResult:
        """Count the record, and wait for the end."""
        ctx.state = (ctx.state or 0) + 1
        ctx.register_event_timer(window.end - 1)
        return ps.TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: ps.Window, ctx: ps.TriggerContext) -> ps.TriggerResult:  # noqa: ARG002
        """Fire at the end."""
        return ps.TriggerResult.FIRE


def windows(name: str, bound: str = "2s") -> tuple[ps.Job, Any]:
    """Return a job and its windowed stream; readings may be late by `bound`."""
    job = ps.Job(name)
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.bounded(bound)
    )
    return job, readings.key_by("key").window(ps.TumblingWindows("10s"))


columns, _windowed = windows("columns")
_windowed.statistics("means", "value").sink_to("means")

records, _windowed = windows("records")
_windowed.aggregate("means", MeanOf()).sink_to("means")

custom, _windowed = windows("custom")
_windowed.trigger(AtTheEnd()).aggregate("means", MeanOf()).sink_to("means")

distinct, _windowed = windows("distinct")
_windowed.approx_count_distinct("means", "at", accuracy=ACCURACY).sink_to("means")

open_columns, _windowed = windows("open_columns", f"{OPEN_MS}ms")
_windowed.statistics("means", "value").sink_to("means")

open_records, _windowed = windows("open_records", f"{OPEN_MS}ms")
_windowed.aggregate("means", MeanOf()).sink_to("means")
