"""The records in the streams of the temperature-control job."""

from dataclasses import dataclass
from enum import Enum


class Command(Enum):
    """A command to a heater: on or off."""

    ON = "ON"
    OFF = "OFF"


@dataclass
class SensorReading:
    """A temperature measured by a room's sensor, in degrees Celsius."""

    sensor_id: int
    temperature: float


@dataclass(frozen=True)
class TemperatureSetting:
    """The range that a room's owner wants, `desired - down_delta` to `desired + up_delta` degrees Celsius."""

    sensor_id: int
    desired: float
    up_delta: float
    down_delta: float


@dataclass
class HeaterCommand:
    """A command to a room's heater."""

    sensor_id: int
    command: Command
