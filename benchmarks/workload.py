"""The workload: settings and readings of many rooms with a fixed seed, and the expected commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "OFF",
    "ON",
    "Codes",
    "Commands",
    "Floats",
    "Integers",
    "Mismatch",
    "Readings",
    "Rooms",
    "expected_commands",
    "mismatch",
    "places",
]

ON: Final = 1
OFF: Final = 2
_SPREAD: Final = 5.0  # readings are within this many degrees of the desired temperature

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Readings:
    """Temperatures in the order of reading."""

    sensor_id: npt.NDArray[np.int32]
    temperature: Floats

    def __len__(self) -> int:
        return len(self.sensor_id)

    def table(self) -> pa.Table:
        """Return them as the table that a job reads."""
        return pa.table({"sensor_id": self.sensor_id.astype(np.int64), "temperature": self.temperature})


@dataclass(frozen=True)
class Commands:
    """Commands (ON or OFF), ordered by sensor and, for each sensor, by time."""

    sensor_id: npt.NDArray[np.int32]
    code: Codes

    @classmethod
    def in_order(cls, sensor_id: Any, code: Codes) -> Commands:
        """Return commands sorted by sensor; those of each sensor must be in order."""
        sensors = np.asarray(sensor_id, np.int32)
        order = np.argsort(sensors, kind="stable")
        return cls(sensors[order], code[order])

    def __len__(self) -> int:
        return len(self.sensor_id)


@dataclass(frozen=True)
class Rooms:
    """The rooms, with one sensor and one setting each, and the share of readings that cause a command.

    Temperatures are uniform around the desired one, so a share p is too warm and a share p too cold. In the long
    run the last command is ON or OFF equally often, and half of those 2 p readings require the other one:
    `emit_share` is p, and at most 0.5.
    """

    count: int
    emit_share: float
    seed: int = 0

    @property
    def desired(self) -> Floats:
        """The desired temperature of each room."""
        return np.random.default_rng((self.seed, 0)).uniform(18, 22, self.count)

    @property
    def delta(self) -> float:
        """The largest deviation, to either side, without a command."""
        return _SPREAD * (1 - 2 * self.emit_share)

    def settings(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Return the settings of the rooms from `start` up to `stop`, as the table that a job reads."""
        rows = np.arange(start, self.count if stop is None else min(stop, self.count))
        delta = np.full(len(rows), self.delta)
        columns = {"sensor_id": rows, "desired": self.desired[rows], "up_delta": delta, "down_delta": delta}
        return pa.table(columns)

    def readings(self, count: int, part: int) -> Readings:
        """Return readings of random rooms; every part is another piece of the same fixed input."""
        random = np.random.default_rng((self.seed, 1, part))
        sensor_id = random.integers(0, self.count, count, np.int32)
        temperature = self.desired[sensor_id] + random.uniform(-_SPREAD, _SPREAD, count)
        return Readings(sensor_id, temperature)

    def alternating(self, rounds: int) -> Readings:
        """Return readings of all rooms in turn, too warm in one round, too cold in the next: each causes a command."""
        sensor_id = np.tile(np.arange(self.count, dtype=np.int32), rounds)
        sign = np.repeat(np.where(np.arange(rounds) % 2 == 0, 1.0, -1.0), self.count)
        return Readings(sensor_id, self.desired[sensor_id] + sign * _SPREAD)


def expected_commands(rooms: Rooms, parts: list[Readings]) -> Commands:
    """Fold all readings after all settings: return a command wherever it differs from the sensor's last one."""
    desired, delta = rooms.desired, rooms.delta
    sensor_id = np.concatenate([part.sensor_id for part in parts])
    temperature = np.concatenate([part.temperature for part in parts])
    code = np.zeros(len(sensor_id), np.int8)
    code[temperature < (desired - delta)[sensor_id]] = ON
    code[temperature > (desired + delta)[sensor_id]] = OFF
    outside = np.flatnonzero(code)
    wished = Commands.in_order(sensor_id[outside], code[outside])
    differs = np.ones(len(wished), bool)
    differs[1:] = (np.diff(wished.sensor_id) != 0) | (np.diff(wished.code) != 0)
    return Commands(wished.sensor_id[differs], wished.code[differs])


@dataclass(frozen=True)
class Mismatch:
    """The differences between actual and expected commands, counted sensor by sensor and position by position."""

    missing: int
    extra: int
    wrong: int

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.wrong)


def mismatch(found: Commands, expected: Commands) -> Mismatch:
    """Compare the sequence of each sensor's commands with the expected one."""
    sensors = 1 + max(_last(found), _last(expected))
    have = np.bincount(found.sensor_id, minlength=sensors)
    want = np.bincount(expected.sensor_id, minlength=sensors)
    common = np.minimum(have, want)
    mine = found.code[places(found, have) < common[found.sensor_id]]
    theirs = expected.code[places(expected, want) < common[expected.sensor_id]]
    return Mismatch(
        missing=int(np.maximum(want - have, 0).sum()),
        extra=int(np.maximum(have - want, 0).sum()),
        wrong=int((mine != theirs).sum()),
    )


def _last(commands: Commands) -> int:
    return int(commands.sensor_id[-1]) if len(commands) else 0


def places(commands: Commands, counts: Integers) -> Integers:
    """Return the position of each command among those of its sensor."""
    starts = np.cumsum(counts) - counts
    found: Integers = np.arange(len(commands)) - starts[commands.sensor_id]
    return found
