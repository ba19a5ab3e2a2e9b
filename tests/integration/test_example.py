"""The temperature-control job on Spark equals a model in plain Python, for any input and parallelism."""

from __future__ import annotations

import base64
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integration_support import read_lines, write_lines
from pyspark.sql import SparkSession
from state_stores import stop_state_stores
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.job_loader import LoadedJob, load_job
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "temperature_control"
STREAMS = ("readings", "settings")
SUMMARY = {"job_id", "status", "batches", "records_in", "records_out", "dead_letters", "state"}

SENSORS = st.integers(0, 5)
DEGREES = st.floats(-50, 50)
READINGS = st.lists(st.fixed_dictionaries({"sensor_id": SENSORS, "temperature": DEGREES}), max_size=40)
SETTINGS = st.lists(
    st.fixed_dictionaries(
        {"sensor_id": SENSORS, "desired": DEGREES, "up_delta": st.floats(0, 3), "down_delta": st.floats(0, 3)}
    ),
    max_size=5,
)
BATCHES = st.lists(st.tuples(SETTINGS, READINGS), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def example() -> LoadedJob:
    return load_job(str(EXAMPLE / "job.py"))


def by_sensor(commands: Sequence[dict[str, Any]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for command in commands:
        found[command["sensor_id"]].append(command["command"])
    return dict(found)


def drawn(chance: random.Random) -> list[tuple[list[Any], list[Any]]]:
    """Draw three micro-batches, in which settings change, and some sensors have none."""

    def one(sensor: int, **ranges: tuple[float, float]) -> dict[str, Any]:
        return {"sensor_id": sensor, **{name: chance.uniform(*ends) for name, ends in ranges.items()}}

    deltas = {"desired": (15, 25), "up_delta": (0, 3), "down_delta": (0, 3)}
    return [
        (
            [one(chance.randrange(6), **deltas) for _ in range(3)],
            [one(chance.randrange(8), temperature=(10, 30)) for _ in range(60)],
        )
        for _ in range(3)
    ]


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.chaos), 5])
def test_the_job_gives_the_fold(spark: SparkSession, example: LoadedJob, parallelism: int) -> None:
    """File k of both streams is batch k, settings first: each sensor's commands are those of the model."""
    check(spark, example, parallelism, drawn(random.Random(parallelism)))


@pytest.mark.chaos
@settings(max_examples=50)
@given(batches=BATCHES, parallelism=st.integers(1, 6))
def test_any_input_gives_the_fold(
    spark: SparkSession, example: LoadedJob, parallelism: int, batches: list[tuple[list[Any], list[Any]]]
) -> None:
    """The same for any micro-batches, including empty ones."""
    check(spark, example, parallelism, batches)


def check(
    spark: SparkSession, example: LoadedJob, parallelism: int, batches: list[tuple[list[Any], list[Any]]]
) -> None:
    import reference

    with tempfile.TemporaryDirectory() as folder:
        for number, parts in enumerate(zip(*batches, strict=True)):
            for place, records in enumerate(parts):
                write_lines(Path(folder) / ("settings", "readings")[number], f"{place}.jsonl", records)
        bindings = {name: f"jsonl:{folder}/{name}?max_files_per_batch=1" for name in STREAMS}
        bindings["heaters"] = f"jsonl:{folder}/heaters"
        run = RunSettings(
            bindings=bindings, bounded=True, checkpoint=f"{folder}/checkpoint", parallelism=parallelism
        )
        summary = JobRunner(example.job, run, example.code).run()
        stop_state_stores(spark)
        commands = read_lines(Path(folder) / "heaters")
    expected = list(reference.commands(batches))
    assert by_sensor(commands) == by_sensor(expected), json.dumps(batches)
    assert summary.batches == len(batches)
    assert summary.records_out == {"heaters": len(expected)}
    assert summary.dead_letters == 0
    assert summary.state == {
        "thermostat": len({setting["sensor_id"] for part, _ in batches for setting in part})
    }


class TwoFolders:
    """Readings and settings in files, one of each per micro-batch, with some bad records."""

    BAD = (
        b'{"sensor_id": 1, "temperature": 2',
        b'{"sensor_id": "one", "temperature": 21.5}',
        b'{"sensor_id": 1, "temperature": NaN}',
        b'{"sensor_id": 1}',
        b'{"sensor_id": 99999999999999999999, "temperature": 1.0}',
        b"[1, 2.0]",
        b"\xff\xfe",
    )

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.readings: list[list[dict[str, Any]]] = []
        self.settings: list[list[dict[str, Any]]] = []
        # Each has its file and its byte offset.
        self.bad: list[tuple[str, int, bytes]] = []
        self._random = random.Random(seed)
        for number in range(4):
            self._write(number)

    def _write(self, number: int) -> None:
        uniform, sensor = self._random.uniform, self._random.randrange
        # Sensors 8 and 9 never have a setting.
        settings = [
            {"sensor_id": sensor(8), "desired": uniform(15, 25), "up_delta": 1.0, "down_delta": uniform(0, 3)}
            for _ in range(10)
        ]
        readings = [{"sensor_id": sensor(10), "temperature": uniform(10, 30)} for _ in range(300)]
        if number == 2:
            readings = []  # an empty file
        lines: list[bytes] = [json.dumps(reading).encode() for reading in readings]
        if number == 1:
            for bad in self.BAD:
                lines.insert(self._random.randrange(len(lines)), bad)
        name = f"{number}.jsonl"
        place = 0
        for line in lines:
            if line in self.BAD:
                self.bad.append((name, place, line))
            place += len(line) + 1
        (self.root / "readings").mkdir(exist_ok=True)
        (self.root / "readings" / name).write_bytes(b"".join(line + b"\n" for line in lines))
        write_lines(self.root / "settings", name, settings)
        self.readings.append(readings)
        self.settings.append(settings)

    def bindings(self) -> list[str]:
        limit = "?max_files_per_batch=1"
        streams = [f"-D{name}=jsonl:{self.root / name}{limit}" for name in STREAMS]
        return [*streams, f"-Dheaters=jsonl:{self.root / 'heaters'}"]


@pytest.mark.usefixtures("spark")
def test_the_command_line_tells_what_a_job_has_done(tmp_path: Path) -> None:
    """The test checks the output of `penstock run`, and the output file of each micro-batch.

    The commands in each file are those of the model for that batch. Undecodable records become dead letters
    with everything needed to find and repeat them, and the JSON line has the counts.
    """
    data = TwoFolders(tmp_path, seed=2)
    checkpoint = tmp_path / "checkpoint"
    arguments = [*data.bindings(), f"--checkpoint={checkpoint}", "--parallelism=2", "-ojson"]
    result = CliRunner().invoke(app, ["run", str(EXAMPLE / "job.py"), "--bounded", *arguments])
    assert result.exit_code == 0, result.output
    import reference

    found: list[dict[str, Any]] = []
    for batch_id in range(len(data.readings)):
        path = tmp_path / "heaters" / f"part-0001-{batch_id:010}.jsonl"
        found += [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        batches = zip(data.settings[: batch_id + 1], data.readings[: batch_id + 1], strict=True)
        assert by_sensor(found) == by_sensor(list(reference.commands(batches))), f"batch {batch_id}"
    assert read_lines(tmp_path / "heaters") == found
    check_summary(result.stdout, data, found)
    check_dead_letters(read_lines(checkpoint / "dead-letters"), data)


def check_summary(out: str, data: TwoFolders, found: list[dict[str, Any]]) -> None:
    """Check that the first line is the job's id, and the last one the summary as JSON."""
    first, *_, last = out.splitlines()
    summary = json.loads(last)
    assert summary.keys() >= SUMMARY
    assert first == summary["job_id"]
    assert summary["job_id"].startswith("temperature-control-")
    assert summary["status"] == "finished"
    assert summary["batches"] == 4
    good_readings = sum(map(len, data.readings))
    assert summary["records_in"] == {
        "readings": good_readings + len(data.bad),
        "settings": sum(map(len, data.settings)),
    }
    assert summary["records_out"] == {"heaters": len(found)}
    assert summary["dead_letters"] == len(data.bad) == len(TwoFolders.BAD)
    sensors = {record["sensor_id"] for records in data.settings for record in records}
    assert summary["state"] == {"thermostat": len(sensors)}


def check_dead_letters(letters: list[Any], data: TwoFolders) -> None:
    places = sorted(
        (letter["partition"], letter["offset"], base64.b64decode(letter["raw"])) for letter in letters
    )
    assert places == sorted(data.bad)
    assert {letter["stream"] for letter in letters} == {"readings"}
    assert all(letter["reason"] for letter in letters)
