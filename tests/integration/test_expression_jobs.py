"""Jobs with expressions in Spark: conditions, selections, and a parameter that a command changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch_job import Reading
from pyspark.sql import SparkSession

import penstock as ps


def warm_job() -> ps.Job:
    job = ps.Job("warm")
    readings = job.data_stream("readings", schema=Reading)
    kept = readings.where("1 / temperature < 1 and room in (1, 2)")
    kept.select("room", "cast(temperature as decimal(6, 2)) * 1.8 + 32 AS fahrenheit").sink_to("all")
    settings = {"limit": ps.Setting(float, 30.0)}
    kept.key_by("room").where("temperature > ${limit}", settings=settings, name="warm").process(
        "alarms", PassOn(), output=Reading
    ).sink_to("alarms")
    return job


class PassOn(ps.ProcessFunction):
    def process_record(self, reading: Reading, ctx: ps.Context) -> list[Reading]:
        return [reading]


READINGS = [Reading(1, 24.0), Reading(2, 31.5), Reading(3, 40.0), Reading(1, 0.0)]


@pytest.mark.parametrize(
    "mode",
    [pytest.param({}, marks=pytest.mark.chaos), {"checkpoint_interval_ms": 1000}],
    ids=["micro-batches", "real time"],
)
def test_a_parameter_changes_in_a_running_job(
    spark: SparkSession, tmp_path: Path, mode: dict[str, int]
) -> None:
    """The job also has stateless expressions, whose failing record is a dead letter."""
    with warm_job().start(
        {"readings": READINGS}, checkpoint=tmp_path / "state", parallelism=2, **mode
    ) as run:
        run.await_batch()
        assert run.await_receipt(run.send_command("set", "warm", {"limit": 20.0})).status == "APPLIED"
        run.send("readings", *READINGS[:3])
        run.await_batch()
        result = run.stop()
    found = sorted((one.room, float(one.fahrenheit)) for one in result.output("all"))
    assert found == [(1, 75.2), (1, 75.2), (2, 88.7), (2, 88.7)]
    assert str(result.output("all")[0].fahrenheit) in ("75.200", "88.700")
    alarms = [(one.room, one.temperature) for one in result.output("alarms")]
    assert sorted(alarms) == [(1, 24.0), (2, 31.5), (2, 31.5)]
    (letter,) = result.dead_letters()
    assert "has no value: divide by zero" in letter.reason


def test_a_job_without_steps_goes_on_in_the_other_mode(spark: SparkSession, tmp_path: Path) -> None:
    """It switches from micro-batches to real time and back; only positions have to be kept."""
    job = ps.Job("warm")
    readings = job.data_stream("readings", schema=Reading)
    readings.where("temperature > 30").sink_to("warm")
    folder = tmp_path / "readings"
    folder.mkdir()
    for number, mode in enumerate(({}, {"checkpoint_interval_ms": 500}, {})):
        (folder / f"{number}.jsonl").write_text(f'{{"room": {number}, "temperature": 31.5}}\n')
        result = job.run(
            {"readings": f"jsonl:{folder}", "warm": f"jsonl:{tmp_path}/warm"},
            checkpoint=tmp_path / "state",
            bounded=True,
            **mode,
        )
        assert not result.dead_letters()
    lines = [line for file in sorted((tmp_path / "warm").glob("*.jsonl")) for line in file.open()]
    assert sorted(json.loads(line)["room"] for line in lines) == [0, 1, 2]
