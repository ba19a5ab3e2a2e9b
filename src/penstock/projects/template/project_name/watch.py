"""The records of the streams, and how the job processes them."""

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """A measurement of a sensor."""

    sensor: str
    value: float


@dataclass
class Limit:
    """The highest acceptable value of a sensor."""

    sensor: str
    highest: float


@dataclass
class Alert:
    """A sensor was above its limit this many times in a row."""

    sensor: str
    value: float
    times: int


class Watch(ps.ConnectedProcessFunction):
    """A step that emits an alert for each reading above the limit, once there are enough of them in a row."""

    # State: one value per sensor. It survives failures and restarts, and is part of savepoints.
    limit = ps.ValueState(float)
    times_above = ps.ValueState(int)

    # A setting: one value for the whole step. A command can change it while the job runs; see README.md.
    patience = ps.Setting(int, 2)

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        """Store a limit. In a micro-batch all limits come before the first reading."""
        self.limit.set(limit.highest)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alert]:
        """Compare a reading with the limit of its sensor."""
        limit = self.limit.get()
        if limit is None:
            return
        if reading.value <= limit:
            self.times_above.set(0)
            return
        times = (self.times_above.get() or 0) + 1
        self.times_above.set(times)
        if times >= self.patience.get():
            yield Alert(reading.sensor, reading.value, times)
