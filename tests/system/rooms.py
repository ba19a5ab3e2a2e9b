"""Rooms: readings and settings for the temperature-control job, and its expected commands."""

from __future__ import annotations

import importlib.util
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from job_process import EXAMPLE

__all__ = ["Record", "Rooms", "by_sensor", "count_records", "fold", "read_folder", "write_file"]

Record = dict[str, Any]

_spec = importlib.util.spec_from_file_location("temperature_reference", EXAMPLE.with_name("reference.py"))
assert _spec is not None
assert _spec.loader is not None
_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_reference)


def fold(batches: Iterable[tuple[Iterable[Record], Iterable[Record]]]) -> dict[int, list[str]]:
    """Return each sensor's expected commands: in each batch all settings take effect, then the readings are
    processed.
    """
    return by_sensor(_reference.commands(batches))


def by_sensor(commands: Iterable[Record]) -> dict[int, list[str]]:
    """Return the commands of each sensor in order."""
    found: dict[int, list[str]] = defaultdict(list)
    for command in commands:
        found[command["sensor_id"]].append(command["command"])
    return dict(found)


class Rooms:
    """An endless supply of readings and settings, reproducible from a seed.

    Steady rooms get new settings all the time, but any of them judges each reading alike: every band lies
    between 17 and 23 degrees and includes 20, and every reading is below 17, above 23, or 20. So their
    commands do not depend on which settings a reading meets, once there is one. The commands of lively rooms
    do: their settings and readings are arbitrary, and some are read before they have a setting.
    """

    STEADY = range(20)
    LIVELY = range(100, 120)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ticks = 0

    def first_settings(self) -> list[Record]:
        """Return a setting for every steady room."""
        return [self._setting(sensor) for sensor in self.STEADY]

    def settings(self) -> list[Record]:
        """Return some new settings."""
        self._ticks += 1
        # Half of the lively rooms get their first settings late.
        lively = self.LIVELY[: 10 if self._ticks < 100 else 20]
        return [self._setting(self._random.choice([*self.STEADY, *lively])) for _ in range(3)]

    def readings(self) -> list[Record]:
        """Return some new readings."""
        sensors = self._random.choices([*self.STEADY, *self.LIVELY], k=40)
        return [{"sensor_id": sensor, "temperature": self._temperature(sensor)} for sensor in sensors]

    def _setting(self, sensor: int) -> Record:
        uniform = self._random.uniform
        if sensor in self.STEADY:
            desired, up, down = uniform(19.5, 20.5), uniform(1, 2), uniform(1, 2)
        else:
            desired, up, down = uniform(15, 25), uniform(0, 2), uniform(0, 2)
        return {"sensor_id": sensor, "desired": desired, "up_delta": up, "down_delta": down}

    def _temperature(self, sensor: int) -> float:
        uniform = self._random.uniform
        if sensor in self.STEADY:
            return self._random.choice([uniform(5, 16.9), uniform(23.1, 35), 20.0])
        return uniform(12, 28)


def write_file(folder: Path, name: str, records: Sequence[Record | str | bytes]) -> None:
    """Write a JSON Lines file atomically; text and bytes are written unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, (bytes, str)) else json.dumps(record) for record in records]
    hidden = folder / f".{name}.tmp"
    hidden.write_bytes(
        b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    )
    hidden.rename(folder / name)


def read_folder(folder: Path) -> list[Record]:
    """Return the records of all visible JSON Lines files of a folder, in order of file name."""
    return [json.loads(line) for path in _visible(folder) for line in path.read_text().splitlines()]


def count_records(folder: Path) -> int:
    """Count the records that `read_folder` would return; cheap enough for polling."""
    return sum(path.read_bytes().count(b"\n") for path in _visible(folder))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.name[0] not in "._")
