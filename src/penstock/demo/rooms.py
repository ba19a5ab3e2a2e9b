"""Rooms: temperatures that drift towards the outside temperature and rise while a heater is on.

The loop is closed: a heater obeys only the commands that are read back from the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["OUTSIDE", "Rooms", "SettingChange"]

Record = dict[str, Any]

OUTSIDE: Final = 6.0  # degrees Celsius
_LEAK_PER_S: Final = 0.03  # of the difference to the outside
_HEATER_PER_S: Final = 1.3  # degrees a second; simulated time is fast, so that people see rooms heat up
_NOISE: Final = 0.03  # degrees
_BAND: Final = 0.5  # degrees above and below the desired temperature
_LOWEST, _HIGHEST = 16.0, 25.0
_STEP: Final = 3.0  # degrees, the size of a control change


@dataclass(frozen=True)
class SettingChange:
    """An owner's change of the desired temperature from `before` to `after`, when the room had `measured` degrees."""

    sensor_id: int
    before: float
    after: float
    measured: float


class Rooms:
    """A number of rooms, with one sensor and one heater each. The same seed produces the same rooms.

    Sensors are numbered from 1.
    """

    def __init__(self, count: int, seed: int = 7) -> None:
        self._random = np.random.default_rng(seed)
        self._sensors: Final = np.arange(1, count + 1)
        self.desired: npt.NDArray[np.float64] = np.round(self._random.uniform(18.0, 23.0, count))
        self.temperature: npt.NDArray[np.float64] = self._random.uniform(17.0, 22.0, count)
        self.heating: npt.NDArray[np.bool_] = np.zeros(count, bool)
        self._next_change = 0

    def __len__(self) -> int:
        return len(self._sensors)

    @property
    def band(self) -> float:
        """The allowed deviation of a room from the desired temperature, in degrees."""
        return _BAND

    def advance(self, seconds: float) -> None:
        """Advance the simulated time."""
        # In small steps, so that a long time does not take a room past the outside temperature.
        steps = max(1, round(seconds / 0.25))
        for _ in range(steps):
            drift = _LEAK_PER_S * (OUTSIDE - self.temperature) + _HEATER_PER_S * self.heating
            self.temperature += drift * seconds / steps
        self.temperature += self._random.normal(0.0, _NOISE, len(self))

    def obey(self, commands: Iterable[Record]) -> None:
        """Apply commands to the heaters."""
        for command in commands:
            self.heating[command["sensor_id"] - 1] = command["command"] == "ON"

    def readings(self) -> list[Record]:
        """Return the current readings of the sensors."""
        measured = np.round(self.temperature, 2).tolist()
        return [
            {"sensor_id": sensor, "temperature": temperature}
            for sensor, temperature in zip(self._sensors.tolist(), measured, strict=True)
        ]

    def settings(self) -> list[Record]:
        """Return the current settings of all rooms."""
        return [self._setting(place) for place in range(len(self))]

    def change_setting(self, among: int) -> tuple[SettingChange, Record]:
        """Change the setting of one of the first `among` rooms, if possible so that its heater switches."""
        places = [(self._next_change + i) % min(among, len(self)) for i in range(min(among, len(self)))]
        place = next((p for p in places if self._wish(p) is not None), places[0])
        self._next_change = place + 1
        before = float(self.desired[place])
        wish = self._wish(place)
        if wish is None:
            middle = (_LOWEST + _HIGHEST) / 2
            wish = before - _STEP if before > middle else before + _STEP
        self.desired[place] = wish
        sensor, measured = int(self._sensors[place]), float(self.temperature[place])
        return SettingChange(sensor, before, wish, measured), self._setting(place)

    def _wish(self, place: int) -> float | None:
        """Return a temperature that makes a room's heater switch: warmer if it is off, colder if it is on."""
        step = -_STEP if self.heating[place] else _STEP
        wish = float(np.round(2 * (self.temperature[place] + step)) / 2)
        return wish if _LOWEST <= wish <= _HIGHEST else None

    def _setting(self, place: int) -> Record:
        return {
            "sensor_id": int(self._sensors[place]),
            "desired": float(self.desired[place]),
            "up_delta": _BAND,
            "down_delta": _BAND,
        }
