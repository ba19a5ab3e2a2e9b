"""The temperature-control job on Spark gives, for any input and parallelism, what a fold in plain Python gives."""

from __future__ import annotations

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

from penstock.jobs.loading import LoadedJob, load_job
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "temperature_control"
STREAMS = ("readings", "settings")

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
    """Three micro-batches, in which settings change, and some sensors have none."""

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


@pytest.mark.parametrize("parallelism", [1, 5])
def test_the_job_gives_the_fold(spark: SparkSession, example: LoadedJob, parallelism: int) -> None:
    """File k of both streams is batch k, settings first: the command sequence of each sensor is that of the fold."""
    check(example, parallelism, drawn(random.Random(parallelism)))


@pytest.mark.chaos
@settings(max_examples=50)
@given(batches=BATCHES, parallelism=st.integers(1, 6))
def test_any_input_gives_the_fold(
    spark: SparkSession, example: LoadedJob, parallelism: int, batches: list[tuple[list[Any], list[Any]]]
) -> None:
    """The same for any micro-batches, also empty ones."""
    check(example, parallelism, batches)


def check(example: LoadedJob, parallelism: int, batches: list[tuple[list[Any], list[Any]]]) -> None:
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
        commands = read_lines(Path(folder) / "heaters")
    expected = list(reference.commands(batches))
    assert by_sensor(commands) == by_sensor(expected), json.dumps(batches)
    assert summary.batches == len(batches)
    assert summary.records_out == {"heaters": len(expected)}
    assert summary.dead_letters == 0
    assert summary.state == {
        "thermostat": len({setting["sensor_id"] for part, _ in batches for setting in part})
    }
