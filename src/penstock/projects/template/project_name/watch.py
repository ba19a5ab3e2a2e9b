"""What the streams carry, and what the job does with it."""

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """What a sensor has measured."""

    sensor: str
    value: float


@dataclass
class Limit:
    """The highest value that is in order for a sensor."""

    sensor: str
    highest: float


@dataclass
class Alert:
    """A sensor was above its limit, so many times in a row."""

    sensor: str
    value: float
    times: int


class Watch(ps.ConnectedProcessFunction):
    """Emits an alert for each reading above the limit, when there were enough of them in a row."""

    # State: a value for each sensor. It is kept through failures, restarts and savepoints.
    limit = ps.ValueState(float)
    times_above = ps.ValueState(int)

    # A setting: a value for the whole step. A command changes it while the job runs; see README.md.
    patience = ps.Setting(int, 2)

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        """Take a limit. In a micro-batch all of them come before the first reading."""
        self.limit.set(limit.highest)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alert]:
        """Judge a reading by the limit of its sensor."""
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
