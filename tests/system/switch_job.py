"""A job that switches a heater, and numbers its commands; its output depends only on the readings of a sensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """A temperature of a room."""

    sensor_id: int
    temperature: float


@dataclass
class Command:
    """A command to a heater, and its number."""

    sensor_id: int
    command: str
    number: int


class Switch(ps.ProcessFunction):
    """Switches the heater on below 17 degrees, and off above 23."""

    last = ps.ValueState(str)
    count = ps.ValueState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Command]:
        """Judge a reading, and emit a command if needed."""
        command = "OFF" if reading.temperature > 23 else "ON" if reading.temperature < 17 else None
        if command is not None and command != self.last.get():
            self.last.set(command)
            number = (self.count.get() or 0) + 1
            self.count.set(number)
            yield Command(reading.sensor_id, command, number)


job = ps.Job("switch", key_groups=8)
readings = job.data_stream("readings", schema=Reading)
readings.key_by("sensor_id").process("switch", Switch()).sink_to("heaters")
