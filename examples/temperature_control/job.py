"""Keep every room at the temperature its owner asked for."""

from collections.abc import Iterator

import messages_pb2 as messages
from records import Command, HeaterCommand, SensorReading, TemperatureSetting

import penstock as ps

job = ps.Job("temperature-control")
readings = job.data_stream("readings", schema=SensorReading, protobuf=messages.SensorData)
settings = job.control_stream("settings", schema=TemperatureSetting, protobuf=messages.TemperatureControl)


class Thermostat(ps.ConnectedProcessFunction):
    """Switches each room's heater when the room leaves the band around what its owner wants."""

    setting = ps.ValueState(TemperatureSetting)
    last_command = ps.ValueState(Command)

    def process_control(self, setting: TemperatureSetting, ctx: ps.Context) -> None:
        self.setting.set(setting)

    def process_record(self, reading: SensorReading, ctx: ps.Context) -> Iterator[HeaterCommand]:
        setting = self.setting.get()
        if setting is None:
            return
        if reading.temperature > setting.desired + setting.up_delta:
            command = Command.OFF
        elif reading.temperature < setting.desired - setting.down_delta:
            command = Command.ON
        else:
            return
        if command != self.last_command.get():
            self.last_command.set(command)
            yield HeaterCommand(reading.sensor_id, command)


thermostat = readings.key_by("sensor_id").connect(settings.key_by("sensor_id"))
thermostat.process("thermostat", Thermostat()).sink_to("heaters", protobuf=messages.HeaterControl)
