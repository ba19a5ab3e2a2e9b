"""Diagnosis of a failed query: a readable sentence, and the damaged checkpoint file, whatever form Spark's
error has.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from penstock.errors import (
    CheckpointError,
    ExternalSystemError,
    FencedError,
    JobFailedError,
    PenstockError,
    StrictModeError,
)
from penstock.jobs.failure_diagnosis import SparkLog, explain_failure

NO_NAME = (
    "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.\n"
    "\tat somewhere\nCaused by: java.lang.NullPointerException\n\tat elsewhere"
)


def told(text: str, folder: Path, logged: str = "") -> PenstockError:
    log = folder / "spark.log"
    log.write_text("Checksum error: file:/of/an/earlier/run at 0 exp: 1 got: 2\n")
    run = SparkLog(log)
    with log.open("a") as file:
        file.write(logged)
    return explain_failure(PySparkException(text), run, folder, streams=2)


@pytest.mark.parametrize(
    "text",
    [
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: java.net.ConnectException: refused",
        "Task failed\n\tat org.apache.hadoop.fs.s3a.S3AUtils\nCaused by: java.net.ConnectException: refused",
    ],
)
def test_a_store_that_does_not_answer_is_no_damage(tmp_path: Path, text: str) -> None:
    """Where tasks keep state on the store, no local folder is searched for damage."""
    log = SparkLog(tmp_path / "spark.log")
    found = explain_failure(PySparkException(text), log, tmp_path, streams=2, store="s3://bucket/rooms")
    assert isinstance(found, ExternalSystemError)
    assert "on s3://bucket/rooms could not be read or written: java.net.ConnectException: refused" in str(
        found
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("terminated: Checksum error: file:{0}/offsets/13 at 1024 exp: -1 got: 1", "offsets/13"),
        ("Failed to read log file file:{0}/commits/3. Incomplete log file", "commits/3"),
        (
            "Error reading streaming state file of file:{0}/state/0/0/14_a.changelog does not exist. If",
            "14_a.changelog",
        ),
        ("FileNotFoundException: File `{0}/state/0/_stateSchema/default/0_a` does not exist.", "0_a"),
        (
            "Checksum verification failed, the file may be corrupted. File: file:{0}/state/0/0/1_a.zip\nE",
            "state/0/0/1_a.zip",
        ),
        (
            "Failed to read the operator metadata for checkpointLocation=file:{0}/state/0 and batchId=14.",
            "state/0",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, name: str) -> None:
    """The error is about the checkpoint and says what to do."""
    error = told(text.format(tmp_path), tmp_path)
    assert type(error) is CheckpointError
    assert f"{tmp_path}/" in str(error)
    assert f"{name} is missing. Restore the file" in str(error)


def test_a_worker_that_was_killed_is_told_with_what_to_do(tmp_path: Path) -> None:
    """Spark's own error on reading from the worker says neither the cause nor the remedy."""
    text = (
        "Job aborted due to stage failure: Task 1 in stage 7.0 failed 1 times, most recent failure: Lost task 1.0: "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\nCaused by: java.io.EOFException\n\tat java.base"
    )
    error = told(text, tmp_path)
    assert type(error) is JobFailedError
    assert "A worker of the job has ended unexpectedly" in str(error)
    assert "Start the job again with its checkpoint" in str(error)
    assert "EOFException" not in str(error)


def test_files_elsewhere_are_not_the_checkpoint(tmp_path: Path) -> None:
    """A missing user file is not checkpoint damage."""
    error = told("java.io.FileNotFoundException: File file:/elsewhere/x does not exist", tmp_path)
    assert type(error) is JobFailedError


def test_sparks_log_tells_the_file_that_its_error_does_not(tmp_path: Path) -> None:
    """Only what was logged during this run is searched."""
    logged = (
        f"ERROR Failed to load\nCaused by: Checksum error: file:{tmp_path}/state/0/0/SSTs/8.sst at 0 exp: 1\n"
    )
    error = told(NO_NAME, tmp_path, logged)
    assert type(error) is CheckpointError
    assert "SSTs/8.sst is missing" in str(error)


@pytest.mark.parametrize(
    ("more", "name"),
    [("", "state"), ("StateStoreId[ operatorId=1, partitionId=3, storeName=default ]", "state/1/3")],
)
def test_state_that_cannot_be_loaded_is_named_at_min_by_its_folder(
    tmp_path: Path, more: str, name: str
) -> None:
    """The message has Spark's reason."""
    error = told(NO_NAME + more, tmp_path)
    assert type(error) is CheckpointError
    assert f"{tmp_path / name} cannot be loaded by Spark (java.lang.NullPointerException)" in str(error)
    assert "spark.log" in str(error)


@pytest.mark.parametrize("kind", [StrictModeError, FencedError])
def test_penstocks_own_errors_come_through(tmp_path: Path, kind: type[PenstockError]) -> None:
    """They are found at any depth of the chain of causes."""
    error = told(f"Traceback\npenstock.errors.{kind.__name__}: Record 3 is bad.\n at x", tmp_path)
    assert type(error) is kind
    assert str(error) == "Record 3 is bad."
