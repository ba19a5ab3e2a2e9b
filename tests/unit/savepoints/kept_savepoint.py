"""Writes a savepoint with all kinds of state, in the present version of the format: `python kept_savepoint.py
FOLDER`.

Savepoints in tests/data are never changed; a new version of the format gets its own folder beside them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["GROUPS", "make", "steps"]

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from stored_jobs import JobWith, Keep, StepWith, StoredJob, captured, first_of_two

import penstock as ps
from penstock.control.commands import Command, Target
from penstock.control.register import Register
from penstock.engine.slot import Header
from penstock.snapshots.snapshot_writer import write_file
from penstock.snapshots.stores import open_store

GROUPS = 8
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)


class Mode(enum.Enum):
    HEAT = "heat"
    OFF = "off"


@dataclass
class Sensor:
    id: int
    unit: str | None = None


@dataclass
class Room:
    name: str
    sensor: Sensor
    spare: Sensor | None
    sensors: list[Sensor]
    tags: dict[str, int]
    price: decimal.Decimal | None
    raw: bytes | None
    mode: Mode | None
    since: dt.datetime | None
    built: dt.date | None


@dataclass(frozen=True)
class Place:
    floor: int
    door: str


ATTIC = Room(
    "Dachboden ☀",
    Sensor(1, "°C"),
    None,
    [Sensor(2), Sensor(3, "K")],
    {"a": 1, "": -1},
    decimal.Decimal("12.345"),
    b"\x00\xff",
    Mode.HEAT,
    AT,
    dt.date(1899, 12, 31),
)
BARE = Room("", Sensor(-1), Sensor(0, ""), [], {}, None, None, None, None, None)


def steps() -> list[StepWith]:
    """Return the steps of the job, with their state."""
    rooms: dict[str, Any] = {
        "flag": ps.ValueState(bool),
        "count": ps.ValueState(int),
        "level": ps.ValueState(float),
        "label": ps.ValueState(str),
        "blob": ps.ValueState(bytes),
        "seen": ps.ValueState(dt.datetime),
        "day": ps.ValueState(dt.date),
        "sum": ps.ValueState(decimal.Decimal),
        "mode": ps.ValueState(Mode),
        "room": ps.ValueState(Room),
        "recent": ps.ListState(Sensor),
        "doors": ps.MapState(Place, float),
        "most": ps.ReducingState(int, first_of_two),
        "kept": ps.AggregatingState(Keep(), accumulator=Sensor),
        "price": ps.TemporalState(float),
        "factor": ps.Setting(float, 1.0),
        "rules": ps.BroadcastState(str, Room),
    }
    attic: dict[str, Any] = {
        "flag": True,
        "count": -(2**63),
        "level": 0.1,
        "label": "„quoted“, \n",
        "blob": b"\x00\x01",
        "seen": AT,
        "day": dt.date(2026, 1, 2),
        "sum": decimal.Decimal("-0.000000000000000001"),
        "mode": Mode.OFF,
        "room": ATTIC,
        "recent": [Sensor(1), Sensor(2, "K")],
        "doors": {Place(1, "b"): 0.5, Place(-1, ""): -0.5},
        "most": 7,
        "kept": Sensor(9, "x"),
        "price": {None: 1.5, AT: 2.5},
    }
    register = Register()
    register.admit(Command(id="first", kind="set", target=Target(step="rooms", all=True), version=3), AT)
    rows = {"attic": attic, "": {"count": 0}, "☃": {"room": BARE, "level": -0.0}}
    shared = {"factor": {None: 0.5, AT: None}, "rules": {"b": ATTIC, "a": BARE}}
    return [
        StepWith(rooms, (str,), [rows, {}], shared, Header(register=register.dump(), cache_generation=2)),
        StepWith(
            {"count": ps.ValueState(int)},
            (int, str),
            [{(1, "a"): {"count": 1}, (2, ""): {"count": 2}}, {(1, "a"): {"count": 3}}],
            header=Header(standing=b"standing", paused=True),
            held=[(1, b"one"), (7, b"seven"), (1, b"two")],
        ),
    ]


def make(folder: Path) -> None:
    """Write the savepoint."""
    stored = StoredJob(JobWith(steps(), GROUPS), 3)
    files = [write_file(open_store(str(folder)), "sources/readings-0.files", b'"a.jsonl"\n')]
    captured(
        folder,
        stored.state,
        "arrow",
        stored.read,
        id="sp-20260102-030405-abcdef",
        batch=41,
        created_at="2026-01-02T03:04:05+00:00",
        files=files,
        positions={"readings-0": {"position": 1}, "commands": {"position": 0}},
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
