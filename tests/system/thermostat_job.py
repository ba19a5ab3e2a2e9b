"""The temperature-control job, shortened, with two sinks: a topic and a folder show the effects of a kill."""

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
class Setting:
    """The desired temperature of a room."""

    sensor_id: int
    desired: float
    up_delta: float
    down_delta: float


@dataclass
class HeaterCommand:
    """A command to a heater."""

    sensor_id: int
    command: str


class Thermostat(ps.ConnectedProcessFunction):
    """Switches the heater when the room leaves the band, and emits one command."""

    setting = ps.ValueState(Setting)
    last_command = ps.ValueState(str)

    def process_control(self, setting: Setting, ctx: ps.Context) -> None:
        """Store a setting."""
        self.setting.set(setting)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[HeaterCommand]:
        """Judge a reading."""
        setting = self.setting.get()
        if setting is None:
            return
        if reading.temperature > setting.desired + setting.up_delta:
            command = "OFF"
        elif reading.temperature < setting.desired - setting.down_delta:
            command = "ON"
        else:
            return
        if command != self.last_command.get():
            self.last_command.set(command)
            yield HeaterCommand(reading.sensor_id, command)


job = ps.Job("thermostat")
readings = job.data_stream("readings", schema=Reading)
settings = job.control_stream("settings", schema=Setting)
commands = (
    readings.key_by("sensor_id").connect(settings.key_by("sensor_id")).process("thermostat", Thermostat())
)
commands.sink_to("heaters")
commands.sink_to("protocol")
