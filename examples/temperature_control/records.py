"""Records: what the streams of the temperature-control job carry."""

from dataclasses import dataclass
from enum import Enum


class Command(Enum):
    """What a heater is told."""

    ON = "ON"
    OFF = "OFF"


@dataclass
class SensorReading:
    """A temperature that a room's sensor has measured, in degrees Celsius."""

    sensor_id: int
    temperature: float


@dataclass
class TemperatureSetting:
    """What a room's owner asks for: from `desired - down_delta` to `desired + up_delta` degrees Celsius."""

    sensor_id: int
    desired: float
    up_delta: float
    down_delta: float


@dataclass
class HeaterCommand:
    """A command to a room's heater."""

    sensor_id: int
    command: Command
