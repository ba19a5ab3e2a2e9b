"""Commands on a checkpoint that is on an object store: they reach the run on this machine, or say where to go."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.ownership import locked
from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.cli import app
from penstock.errors import JobDefinitionError
from penstock.launch.job import Job

URI = "s3://bucket/rooms"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_command_reaches_the_run_on_this_machine() -> None:
    folder = working_folder(URI)
    Checkpoint.open(str(folder)).begin(Lineage("lineage", "job", 8, 2, ("readings",)))
    with locked(folder, threading.Event(), 0):
        done = CliRunner().invoke(app, ["events", URI, "-o", "json"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("left", [True, False])
def test_without_a_run_here_nothing_is_read(left: bool) -> None:
    """What an earlier run has left may be older than the checkpoint."""
    if left:
        Checkpoint.open(str(working_folder(URI))).begin(Lineage("lineage", "job", 8, 2, ("readings",)))
    done = CliRunner().invoke(app, ["rescale", URI, "--parallelism", "4"])
    assert done.exit_code == 2
    assert "No run on this machine uses the checkpoint" in done.output


def test_doctor_says_that_it_checks_folders() -> None:
    done = CliRunner().invoke(app, ["doctor", "--checkpoint", URI])
    assert done.exit_code == 2
    assert "is on an object store" in done.output


def test_a_run_in_python_needs_a_folder() -> None:
    job = Job("rooms")
    job.data_stream("readings", schema="room STRING").sink_to("out")
    with pytest.raises(JobDefinitionError, match="penstock run --checkpoint"):
        job.start(checkpoint=URI)
