"""Commands on a checkpoint on an object store: they reach the run on this machine, or say where to go."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import pytest
from modelled_store import ModelledStore
from typer.testing import CliRunner

from penstock.checkpoints import stored_copies
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.ownership import lock_checkpoint
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint, working_folder
from penstock.checkpoints.stored_home import note_home
from penstock.cli import app
from penstock.errors import JobDefinitionError
from penstock.jobs.events import RunEvents
from penstock.launch.job import Job

URI = "s3://bucket/rooms"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_command_reaches_the_run_on_this_machine() -> None:
    folder = working_folder(URI)
    Checkpoint.open(str(folder)).begin(Lineage("lineage", "job", 8, 2, ("readings",)))
    with lock_checkpoint(folder, threading.Event(), 0):
        done = CliRunner().invoke(app, ["events", URI, "-o", "json"])
    assert done.exit_code == 0, done.output


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelledStore:
    """Return the store with the checkpoint of a run on another machine."""
    store = ModelledStore()
    there = tmp_path / "there"
    there.mkdir()
    stored = StoredCheckpoint(store, URI, there)
    with stored.opened():
        Checkpoint(there).begin(Lineage("lineage", "job", 8, 2, ("readings",)))
        RunEvents(there, "job", "job-1", "ann").add("stopped", {})
        stored.take()
    monkeypatch.setattr(stored_copies, "ObjectFolder", lambda *_: store)
    return store


@pytest.mark.parametrize("left", [True, False])
def test_without_a_run_here_a_copy_is_read(elsewhere: ModelledStore, left: bool) -> None:
    """Local remains of an earlier run may be older than the checkpoint. The copy is removed."""
    if left:
        Checkpoint.open(str(working_folder(URI))).begin(Lineage("lineage", "old", 8, 2, ("readings",)))
    before = dict(elsewhere.objects)
    done = CliRunner().invoke(app, ["events", URI, "-o", "json"])
    assert (done.exit_code, json.loads(done.output)["event"]) == (0, "stopped")
    assert elsewhere.objects == before
    assert not list(Path(tempfile.gettempdir()).glob("penstock-copy-*"))


@pytest.mark.parametrize("verb", [["rescale", URI, "--parallelism", "4"], ["stop", URI]])
def test_what_a_run_must_do_needs_its_machine(elsewhere: ModelledStore, verb: list[str]) -> None:
    done = CliRunner().invoke(app, verb)
    assert done.exit_code == 2
    assert "No run on this machine uses the checkpoint" in done.output


def test_a_checkpoint_that_is_not_there_is_told(elsewhere: ModelledStore) -> None:
    elsewhere.objects.clear()
    done = CliRunner().invoke(app, ["events", URI])
    assert (done.exit_code, "There is no checkpoint s3://bucket/rooms" in done.output) == (2, True)


def test_a_working_folder_is_not_rescaled_by_itself() -> None:
    """Its store would not learn of the change."""
    folder = working_folder(URI)
    Checkpoint.open(str(folder)).begin(Lineage("lineage", "job", 8, 2, ("readings",)))
    note_home(folder, URI)
    done = CliRunner().invoke(app, ["rescale", str(folder), "--parallelism", "4"])
    assert (done.exit_code, "which only a run changes" in done.output) == (2, True)


def test_doctor_says_that_it_checks_folders() -> None:
    done = CliRunner().invoke(app, ["doctor", "--checkpoint", URI])
    assert done.exit_code == 2
    assert "is on an object store" in done.output


def test_a_run_in_python_needs_a_folder() -> None:
    job = Job("rooms")
    job.data_stream("readings", schema="room STRING").sink_to("out")
    with pytest.raises(JobDefinitionError, match="penstock run --checkpoint"):
        job.start(checkpoint=URI)
