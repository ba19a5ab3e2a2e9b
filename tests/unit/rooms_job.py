"""A small job with a checkpoint that holds state; what its slots have stored stands in for Spark's part."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stored_jobs import JobWith, StepWith, StoredJob, captured, job_of

import penstock as ps
from penstock.checkpoints import committed_state
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.described_state import STATE_FILE
from penstock.savepoints import snapshot_capture
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_writer import write_file
from penstock.snapshots.stores import open_store
from penstock.spark.stored_state import StateLocation

GROUPS = 4
KEYS = range(10)


def steps(**states: Any) -> list[StepWith]:
    """One step over int keys, which holds a limit for each and a setting; `states` replace those."""
    declared = states or {"limit": ps.ValueState(int), "factor": ps.Setting(float)}
    rows = {key: {"limit": key * 2} for key in KEYS} if "limit" in declared else {}
    shared: dict[str, Any] = {"factor": {None: 0.5}} if "factor" in declared else {}
    return [StepWith(declared, (int,), [rows, {}], shared)]


def rooms(**states: Any) -> ps.Job:
    return job_of(steps(**states), GROUPS)


def stored_rooms(parallelism: int = 2) -> StoredJob:
    return StoredJob(JobWith(steps(), GROUPS), parallelism)


POSITIONS = {"readings-0": {"position": 3}, "commands": {"position": 1}}


def snapshot(place: Path, form: str, *, positions: dict[str, Any] | None = None, **about: Any) -> Manifest:
    """A snapshot of the rooms; a savepoint, with a file of the source, when the format is arrow."""
    before = stored_rooms()
    more: dict[str, Any] = {"positions": POSITIONS if positions is None else positions, **about}
    if form == "arrow":
        more["files"] = [
            write_file(open_store(str(place)), "sources/readings-0.files", b'"a"\n"b"\n"c"\n'),
            write_file(open_store(str(place)), "fetched/one", b"1"),
        ]
    return captured(place, before.state, form, before.read, **more)


@dataclass
class Rooms:
    """A checkpoint in which Spark has committed micro-batches; `stored` is what it would read."""

    checkpoint: Checkpoint
    stored: StoredJob

    @property
    def folder(self) -> Path:
        return self.checkpoint.folder

    def commit(self, batch: int, planned: int | None = None) -> None:
        """As Spark leaves its logs behind a micro-batch, perhaps with another one planned."""
        for name, last in (("offsets", batch if planned is None else planned), ("commits", batch)):
            (self.folder / name).mkdir(exist_ok=True)
            for number in range(last + 1):
                lines = ["v1", "{}", f'{{"position":{number + 1}}}', "-"]
                (self.folder / name / str(number)).write_text("\n".join(lines))
                (self.folder / name / f".{number}.crc").write_bytes(b"crc")
        (self.folder / "metadata").write_text("{}")
        (self.folder / "state" / "0").mkdir(parents=True, exist_ok=True)
        (self.folder / "state" / "0" / "1.delta").write_bytes(b"x")


def committed_rooms(folder: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int = 2) -> Rooms:
    """A checkpoint behind its first three micro-batches."""
    stored = stored_rooms(parallelism)
    checkpoint = Checkpoint.open(str(folder))
    lineage = Lineage("abc", stored.job.name, GROUPS, parallelism, ("readings-0", "commands"))
    checkpoint.begin(lineage)
    checkpoint.save(STATE_FILE, stored.state)
    checkpoint.save(
        "counts.json", {"batch": 2, "keys": {"step 0": {"0": 6, "2": 4}}, "held": {}, "records": 9}
    )
    found = Rooms(checkpoint, stored)
    found.commit(2)
    _read_by(found, monkeypatch)
    return found


def copied_rooms(rooms: Rooms, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """The same in another folder."""
    shutil.copytree(rooms.folder, folder)
    found = Rooms(Checkpoint.open(str(folder)), rooms.stored)
    _read_by(found, monkeypatch)
    return found


def _read_by(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, stored = rooms.folder, rooms.stored

    def read_slots(
        session: Any, place: StateLocation, batch: int, node: str, reader: Any
    ) -> tuple[set[int], list[bytes]]:
        assert (place.location, batch) == (f"file://{folder}", newest(folder))
        slots = {number for owner, number in stored.stored if owner == node and stored.stored[owner, number]}
        return slots, stored.read(node, reader)

    def stored_slots(
        place: Path, batch: int, node: str, files: Any, numbers: Iterable[int]
    ) -> Iterator[tuple[int, Any]]:
        assert (place, batch) == (folder, newest(folder))
        for number in numbers:
            yield number, stored.stored[node, number]

    monkeypatch.setattr(snapshot_capture, "read_slots", read_slots)
    monkeypatch.setattr(committed_state, "stored_slots", stored_slots)


def newest(folder: Path) -> int:
    return max(int(path.name) for path in (folder / "commits").glob("[0-9]*"))
