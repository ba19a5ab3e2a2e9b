"""The temperature-control job in its vectorised form: the same commands, from columns instead of single records.

State has the same names and types as in `job.py`, so either form goes on from the other's checkpoint.
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


class Thermostat(ps.ConnectedProcessFunction):
    """Switches each room's heater when the room leaves the band around what its owner wants."""

    setting = ps.ValueState(TemperatureSetting)
    last_command = ps.ValueState(Command)

    def process_control(self, setting: TemperatureSetting, ctx: ps.Context) -> None:
        self.setting.set(setting)

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        too_warm, too_cold = self._judge(records.column("temperature").to_numpy(), ctx.key_indices)
        # Only readings outside the band matter from here on, room by room, in the order in which they came.
        rows = np.flatnonzero(too_warm | too_cold)
        rows = rows[np.argsort(ctx.key_indices[rows], kind="stable")]
        slots = ctx.key_indices[rows]
        commands = np.where(too_warm[rows], "OFF", "ON").astype(object)
        first, last = _ends_of_runs(slots)
        differs = np.ones(len(rows), bool)
        differs[1:] = commands[1:] != commands[:-1]
        # A room's first command here follows the last one of an earlier batch (None: there was none).
        differs[first] = commands[first] != self.last_command.columns().values[slots[first]]
        changed = last[commands[last] != self.last_command.columns().values[slots[last]]]
        self.last_command.put(slots[changed], commands[changed])
        emitted = np.sort(rows[differs])
        sensors = records.column("sensor_id").take(pa.array(emitted))
        sent = pa.array(np.where(too_warm[emitted], "OFF", "ON"), pa.string())
        return pa.RecordBatch.from_arrays([sensors, sent], names=["sensor_id", "command"]), emitted

    def _judge(
        self, temperature: npt.NDArray[np.float64], slots: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which readings are warmer, and which are colder, than their room's setting allows (warmer counts first)."""
        setting = self.setting.columns()
        # Sums beyond the range of floats are as harmless here as they are in plain Python.
        with np.errstate(over="ignore", invalid="ignore"):
            upper = setting["desired"] + setting["up_delta"]
            lower = setting["desired"] - setting["down_delta"]
        too_warm = setting.present[slots] & (temperature > upper[slots])
        too_cold = setting.present[slots] & (temperature < lower[slots])
        return too_warm, too_cold


def _ends_of_runs(slots: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The places where a run of equal slots begins, and where it ends."""
    changes = np.flatnonzero(slots[1:] != slots[:-1])
    if not len(slots):
        return changes, changes
    return np.concatenate([[0], changes + 1]), np.concatenate([changes, [len(slots) - 1]])


thermostat = readings.key_by("sensor_id").connect(settings.key_by("sensor_id"))
thermostat.process("thermostat", Thermostat(), output=HeaterCommand).sink_to(
    "heaters", protobuf=messages.HeaterControl
)
