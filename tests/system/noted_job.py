"""A job that counts the readings of each sensor, and emits their long notes with the counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """A number of a sensor, with a note."""

    sensor: int
    number: int
    note: str


@dataclass
class Seen:
    """The number of a reading within its sensor, and its note."""

    sensor: int
    number: int
    count: int
    note: str


class Counts(ps.ProcessFunction):
    """Counts the readings of each sensor."""

    count = ps.ValueState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        """Count a reading."""
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield Seen(reading.sensor, reading.number, count, reading.note)


job = ps.Job("noted")
job.data_stream("readings", schema=Reading).key_by("sensor").process("counts", Counts()).sink_to("seen")
