"""SQL files on Spark: from folder to folder, in both modes, and continued from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sql_cases import CASES, Case, data, described, expected, rows_of

import penstock as ps
from penstock.jobs.job_loader import load_job
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings

FILE = """
CREATE STREAM readings (room STRING NOT NULL, celsius DOUBLE, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND) WITH ('binding' = 'csv:{folder}/in');
CREATE TABLE hot (room STRING, minute TIMESTAMP, readings BIGINT, mean DOUBLE)
  WITH ('binding' = 'jsonl:{folder}/out');
CREATE FUNCTION fahrenheit AS 'fahrenheit_of_rooms:fahrenheit';
SET 'limit' = 10.0;
CREATE VIEW warm AS SELECT room, fahrenheit(celsius) AS f, at FROM readings WHERE celsius > ${{limit}};
INSERT INTO hot
SELECT room, window_start, COUNT(*), AVG(f) FROM TABLE(TUMBLE(TABLE warm, DESCRIPTOR(at), INTERVAL '1' MINUTE))
GROUP BY room, window_start, window_end;
"""


def write(folder: Path, name: str, minute: int) -> None:
    lines = ["room,celsius,at"]
    lines += [f"r{n % 2},{n * 5},2024-01-01T00:{minute:02}:{n * 6:02}Z" for n in range(10)]
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


def test_a_file_runs_from_folder_to_folder_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """The file uses a Python function; the second run continues with the state of the first."""
    (tmp_path / "in").mkdir()
    (tmp_path / "fahrenheit_of_rooms.py").write_text(
        "def fahrenheit(c: float) -> float:\n    return c * 1.8 + 32\n"
    )
    (tmp_path / "hot_rooms.sql").write_text(FILE.format(folder=tmp_path))
    for name, minute in (("a.csv", 0), ("b.csv", 1)):
        write(tmp_path, name, minute)
        loaded = load_job(str(tmp_path / "hot_rooms.sql"))
        settings = RunSettings(bounded=True, checkpoint=str(tmp_path / "state"), parallelism=2)
        assert JobRunner(loaded.job, settings, loaded.code).run().status == "finished"
    found = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert sorted((one["room"], one["minute"][14:16], one["readings"], one["mean"]) for one in found) == [
        ("r0", "00", 3, 86.0),
        ("r0", "01", 3, 86.0),
        ("r1", "00", 4, 86.0),
        ("r1", "01", 4, 86.0),
    ]


def check(cases: list[Case], spark: SparkSession, folder: Path, mode: dict[str, int]) -> None:
    """Run several statements as one job, and compare each with DuckDB's answer."""
    for number, case in enumerate(cases):
        job = described(case)
        result = job.run(
            {name: records for name, records in data().items() if f"source/{name}" in job.graph.nodes},
            checkpoint=folder / str(number),
            parallelism=2,
            **mode,  # type: ignore[arg-type]
        )
        (sink,) = job.graph.sinks()
        assert rows_of(result.output(sink.name), sink.upsert_key) == expected(case), case.name
        assert not result.dead_letters(), case.name


# tests/unit/sql covers everything without Spark.
SOME = ("a left interval join",)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in SOME], ids=lambda case: case.name)
def test_a_statement_means_the_same_on_spark(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    check([case], spark, tmp_path, {})


REAL_TIME = {"checkpoint_interval_ms": 1000}


def test_time_ends_after_the_results_of_all_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """In real time no result of a window is late in the next one, whichever task is first at the end."""
    (case,) = (one for one in CASES if one.name == "windows of windows")
    check([case], spark, tmp_path, REAL_TIME)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", [{}, REAL_TIME], ids=["micro-batches", "real time"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_statements_mean_the_same_on_spark(
    case: Case, mode: dict[str, int], spark: SparkSession, tmp_path: Path
) -> None:
    check([case], spark, tmp_path, mode)


def test_a_query_in_python_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    job = ps.Job("warm")
    job.data_stream("readings", schema="room INT, celsius DOUBLE")
    result = job.sql("SELECT room, celsius * 2 AS two FROM readings WHERE celsius > 20")
    assert result.stream is not None
    result.stream.sink_to("two")
    run = job.run({"readings": [{"room": 1, "celsius": 25.0}, {"room": 2, "celsius": 3.0}]}, parallelism=1)
    assert [(one.room, one.two) for one in run.output("two")] == [(1, 50.0)]
