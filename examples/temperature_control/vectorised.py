"""The temperature-control job in vectorised form: the same commands, from columns instead of single records.

State has the same names and types as in `job.py`, so either form continues from the other's checkpoint.
"""

import messages_pb2 as messages
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from records import Command, HeaterCommand, SensorReading, TemperatureSetting

import penstock as ps

job = ps.Job("temperature-control")
readings = job.data_stream("readings", schema=SensorReading, protobuf=messages.SensorData)
settings = job.control_stream("settings", schema=TemperatureSetting, protobuf=messages.TemperatureControl)

COMMANDS = np.array(["ON", "OFF"], object)


class Thermostat(ps.ConnectedProcessFunction):
    """Switches each room's heater when the room leaves the band around what its owner wants."""

    setting = ps.ValueState(TemperatureSetting)
    last_command = ps.ValueState(Command)

    def process_control(self, setting: TemperatureSetting, ctx: ps.Context) -> None:
        self.setting.set(setting)

    # Sums beyond the range of floats are as harmless here as they are in plain Python.
    @np.errstate(over="ignore", invalid="ignore")
    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        temperature = records.column("temperature").to_numpy()
        setting, key = self.setting.columns(), ctx.key_indices
        too_warm = setting.present[key] & (temperature > (setting["desired"] + setting["up_delta"])[key])
        too_cold = setting.present[key] & (temperature < (setting["desired"] - setting["down_delta"])[key])
        # Only readings outside the band matter from here on.
        rows = np.flatnonzero(too_warm | too_cold)
        commands = COMMANDS[too_warm[rows].astype(int)]
        before = self.last_command.exchange(key[rows], commands)
        differs = commands != before.values
        return ctx.select(rows[differs], "sensor_id", command=commands[differs])


thermostat = readings.key_by("sensor_id").connect(settings.key_by("sensor_id"))
thermostat.process("thermostat", Thermostat(), output=HeaterCommand).sink_to(
    "heaters", protobuf=messages.HeaterControl
)
