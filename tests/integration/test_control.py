"""Control on Spark: one cut for all keys, effective times as a temporal join, and replays with the same bytes."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration_support import read_lines, write_lines

import penstock as ps
from penstock.commands.receipt_segments import NewReceipts

START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
KEYS = 200


@dataclass
class Reading:
    """A number, with the time at which it was read."""

    sensor: int
    number: int
    at: dt.datetime


@dataclass
class Seen:
    """The rates that applied to a reading."""

    sensor: int
    number: int
    limit: int | None
    label: int | None
    rate: int


@dataclass
class Rate:
    """A rate for all sensors, valid from a time on."""

    rate: int
    since: dt.datetime | None = None


class Judge(ps.ConnectedProcessFunction):
    """Emits for each reading the rates at the cut, and at the reading's own time."""

    limit = ps.ValueState(int)
    label = ps.TemporalState(int)
    rate = ps.Setting(int, 0)

    def process_control(self, record: Rate, ctx: ps.Context) -> None:
        self.rate.set(record.rate)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        if self.limit.get() is None:
            self.limit.set(0)
        yield Seen(reading.sensor, reading.number, self.limit.get(), self.label.get(), self.rate.get())


def job() -> ps.Job:
    made = ps.Job("judge")
    readings = made.data_stream("readings", schema=Reading, event_time="at")
    rates = made.control_stream("rates", schema=Rate, effective_at="since")
    readings.key_by("sensor").connect(rates.broadcast()).process(
        "judge", Judge()
    ).stamp_control_version().sink_to("seen")
    return made


def hour(number: float) -> str:
    return (START + dt.timedelta(hours=number)).isoformat()


def command(number: int, kind: str, values: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "kind": kind, "payload": values, **more}


ALL = {"step": "judge", "all": True}


class Folders:
    """The input and output of the job, in a folder that can be copied and restored."""

    def __init__(self, root: Path) -> None:
        self.root = root / "live"
        for name in ("readings", "rates", "seen", "checkpoint/commands"):
            (self.root / name).mkdir(parents=True)

    @property
    def bindings(self) -> dict[str, str]:
        return {name: f"jsonl:{self.root / name}" for name in ("readings", "rates", "seen")}

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def put(self, stream: str, name: str, records: list[Any]) -> None:
        write_lines(self.root / stream, name, records)

    def bytes_of(self, *names: str) -> dict[str, bytes]:
        """Return the content of some folders, by file."""
        return {
            f"{name}/{path.name}": path.read_bytes()
            for name in names
            for path in sorted((self.root / name).glob("part-*"))
        }


def feed(folders: Folders, stage: int) -> list[dict[str, Any]]:
    """Write readings of all keys, from hours around the effective times, in random order and in several files."""
    chance = random.Random(stage)
    readings = [
        {"sensor": sensor, "number": stage * 10_000 + n * KEYS + sensor, "at": hour(chance.uniform(-4, 4))}
        for n in range(5)
        for sensor in range(KEYS)
    ]
    chance.shuffle(readings)
    for part in range(4):
        folders.put("readings", f"{stage}-{part}.jsonl", readings[part::4])
    return readings


def crash_after_planning(folders: Folders, before: Path, after: Path, batch: int) -> None:
    """Restore the state before a micro-batch, with Spark's record of its plan and time."""
    shutil.rmtree(folders.root)
    shutil.copytree(before, folders.root)
    shutil.copy(after / f"checkpoint/offsets/{batch}", folders.checkpoint / "offsets")
    shutil.rmtree(folders.checkpoint / "sources", ignore_errors=True)
    shutil.copytree(after / "checkpoint/sources", folders.checkpoint / "sources")
    for name in ("readings", "rates", "checkpoint/commands"):
        shutil.copytree(after / name, folders.root / name, dirs_exist_ok=True)


def replays(run_job: Any, tmp_path: Path, count: int) -> None:
    """Check one cut on every key, a temporal join, and `count` replays of their micro-batch."""
    folders = Folders(tmp_path)
    settings = {"checkpoint": str(folders.checkpoint), "parallelism": 4, "master": "local[2]"}
    feed(folders, 0)
    run_job(job(), folders.bindings, **settings)
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(folders.root, before)
    (batch,) = (int(path.name) + 1 for path in (folders.checkpoint / "commits").glob("[0-9]*"))

    readings = feed(folders, 1)
    folders.put(
        "checkpoint/commands",
        "one.jsonl",
        [
            command(1, "set", {"limit": 7}, target=ALL, version=5),
            command(2, "set", {"label": 1}, target=ALL, effective_at=hour(-2), version=6),
            command(3, "set", {"label": 2}, target=ALL, effective_at=hour(1.5), version=7),
        ],
    )
    folders.put("rates", "one.jsonl", [{"rate": 3, "since": None}, {"rate": 4, "since": hour(0)}])
    folders.put("rates", "two.jsonl", [{"rate": 5, "since": hour(2)}, {"rate": 6, "since": hour(1)}])
    run_job(job(), folders.bindings, **settings)
    shutil.copytree(folders.root, after)

    seen = {record["number"]: record for record in read_lines(folders.root / "seen")}
    assert {seen[number]["limit"] for number in seen if number < 10_000} == {0}
    for reading in readings:
        found = seen[reading["number"]]
        at = dt.datetime.fromisoformat(reading["at"])
        hours = (at - START) / dt.timedelta(hours=1)
        label = (
            max([(-2, 1), (1.5, 2)], key=lambda one: one[0] if one[0] <= hours else -99)
            if hours >= -2
            else (0, None)
        )
        rate = max(
            (one for one in [(-99, 3), (0, 4), (1, 6), (2, 5)] if one[0] <= hours), key=lambda one: one[0]
        )
        assert (found["limit"], found["label"], found["rate"]) == (7, label[1], rate[1])
        assert found["control_version"] == (5 if hours < -2 else 6 if hours < 1.5 else 7)

    statuses = [(r.id, r.status, r.batch) for r in NewReceipts(folders.checkpoint, from_start=True).read()]
    assert statuses == [
        (f"c{n}", status, batch) for n in (1, 2, 3) for status in ("ACCEPTED", "VALIDATED", "APPLIED")
    ]
    written = folders.bytes_of("seen", "checkpoint/receipts")
    for _ in range(count):
        crash_after_planning(folders, before, after, batch)
        assert folders.bytes_of("seen") != written
        run_job(job(), folders.bindings, **settings)
        assert folders.bytes_of("seen", "checkpoint/receipts") == written


def test_a_broadcast_command_is_one_cut_and_replays_give_the_same_bytes(run_job: Any, tmp_path: Path) -> None:
    """There are four state partitions, commands to all keys, past and future effective times, and unordered
    records.
    """
    replays(run_job, tmp_path, 1)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_hundred_replays_give_the_same_bytes(run_job: Any, tmp_path: Path) -> None:
    """The same a hundred times."""
    # Workers import this module for its job, and have only the modules of its folder.
    from reliability import noting

    with noting("replays", "-k a_hundred_replays") as injected:
        injected.add("crash behind the plan of a micro-batch", 100)
        replays(run_job, tmp_path, 100)
