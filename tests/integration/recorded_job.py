"""A small job whose checkpoint has every kind of state file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """A number of a sensor."""

    sensor: int
    number: int


@dataclass
class Seen:
    """The number of readings of a sensor so far."""

    sensor: int
    count: int


class Counts(ps.ProcessFunction):
    """Counts the readings of each sensor."""

    count = ps.ValueState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        """Count a reading."""
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield Seen(reading.sensor, count)


job = ps.Job("recorded")
job.data_stream("readings", schema=Reading).key_by("sensor").process("counts", Counts()).sink_to("seen")
