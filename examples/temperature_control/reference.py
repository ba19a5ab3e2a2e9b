"""The reference: the expected output of the temperature-control job, as a fold in plain Python.

It uses neither penstock nor Spark, so that it can check them. Records are dicts as in JSON.
"""

from collections.abc import Iterable, Iterator
from typing import Any

Record = dict[str, Any]


class Fold:
    """The logic of the job on one machine, one record at a time."""

    def __init__(self) -> None:
        self.settings: dict[int, Record] = {}
        self.last_command: dict[int, str] = {}

    def take_setting(self, setting: Record) -> None:
        """Take a new setting of a room's owner."""
        self.settings[setting["sensor_id"]] = setting

    def judge(self, reading: Record) -> Record | None:
        """Return the command that a reading causes, or None."""
        sensor = reading["sensor_id"]
        if sensor not in self.settings:
            return None
        setting = self.settings[sensor]
        if reading["temperature"] > setting["desired"] + setting["up_delta"]:
            command = "OFF"
        elif reading["temperature"] < setting["desired"] - setting["down_delta"]:
            command = "ON"
        else:
            return None
        if self.last_command.get(sensor) == command:
            return None
        self.last_command[sensor] = command
        return {"sensor_id": sensor, "command": command}


def commands(batches: Iterable[tuple[Iterable[Record], Iterable[Record]]]) -> Iterator[Record]:
    """Yield the commands of a run: in each batch (settings, readings) all settings take effect before the readings.

    >>> warm = {"sensor_id": 1, "temperature": 23.5}
    >>> wish = {"sensor_id": 1, "desired": 20.0, "up_delta": 1.0, "down_delta": 1.0}
    >>> list(commands([([], [warm]), ([wish], [warm, warm])]))
    [{'sensor_id': 1, 'command': 'OFF'}]
    """
    fold = Fold()
    for settings, readings in batches:
        for setting in settings:
            fold.take_setting(setting)
        for reading in readings:
            command = fold.judge(reading)
            if command is not None:
                yield command
