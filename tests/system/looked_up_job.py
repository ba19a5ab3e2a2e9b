"""A job that counts readings by a column of an outside table, so that a replay with other rows would show."""

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
class Placed:
    """A reading with the place of its sensor."""

    sensor: int
    number: int
    place: int


@dataclass
class Counted:
    """A placed reading, with the count of readings of its place so far."""

    sensor: int
    number: int
    place: int
    count: int


class Count(ps.ProcessFunction):
    """Counts the readings of each place."""

    total = ps.ValueState(int)

    def process_record(self, placed: Placed, ctx: ps.Context) -> Iterator[Counted]:
        """Count a reading."""
        count = (self.total.get() or 0) + 1
        self.total.set(count)
        yield Counted(placed.sensor, placed.number, placed.place, count)


job = ps.Job("looked-up")
readings = job.data_stream("readings", schema=Reading)
places = job.lookup_table("places", schema="id BIGINT NOT NULL, place BIGINT NOT NULL")
placed = readings.lookup_join("placed", places, on=("sensor", "id"), fields=["sensor", "number", "place"])
placed.key_by("place").process("count", Count(), output=Counted).sink_to("counted")
