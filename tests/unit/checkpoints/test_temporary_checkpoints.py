"""Temporary checkpoints are removed after the run, unless they help to understand a failure."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.checkpoints.temporary_checkpoints import keep_on_failure, temporary_checkpoint
from penstock.cli import app
from penstock.errors import BindingError, JobFailedError
from penstock.jobs.runner import JobRunner, RunHooks
from penstock.jobs.settings import RunSettings

JOB = (
    'import penstock as ps\njob = ps.Job("job")\njob.data_stream("hits", schema="page INT").sink_to("out")\n'
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place of temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_run_that_is_refused_leaves_nothing(place: Path, tmp_path: Path) -> None:
    """Its temporary checkpoint is removed."""
    job = ps.Job("job")
    job.data_stream("hits", schema="page INT").sink_to("out")
    bindings = {"hits": f"jsonl:{tmp_path / 'missing'}", "out": f"jsonl:{tmp_path / 'out'}"}
    notes: list[str] = []
    with pytest.raises(BindingError):
        JobRunner(job, RunSettings(bindings=bindings)).run(hooks=RunHooks(on_note=notes.append))
    assert list(place.iterdir()) == []
    assert notes == []


def test_a_refused_run_has_no_job_id(place: Path, tmp_path: Path) -> None:
    """Programs that read the id from standard output rely on a started job."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    result = CliRunner().invoke(
        app, ["run", str(file), f"-Dhits=jsonl:{tmp_path / 'missing'}", f"-Dout=jsonl:{tmp_path / 'out'}"]
    )
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith("Error: ")


def run_over(checkpoint: Path, error: BaseException | None, **files: str) -> None:
    """Simulate a run that leaves files in its checkpoint, and ends with or without an error."""
    for name, content in files.items():
        (checkpoint / name.replace("_", ".")).write_text(content)
    if error is not None:
        raise error


def leave_dead_letters(checkpoint: Path) -> None:
    """Write dead letters of a job."""
    (checkpoint / "dead-letters").mkdir()
    (checkpoint / "dead-letters" / "part-0000.jsonl").write_text("{}")


FAILED = JobFailedError("It failed.")


def test_what_a_failed_run_leaves_is_named(place: Path) -> None:
    """Spark's log tells why it failed."""
    notes: list[str] = []
    with pytest.raises(JobFailedError), temporary_checkpoint(notes.append) as checkpoint:
        run_over(checkpoint.folder, FAILED, lineage_json="{}", spark_log="ERROR")
    (folder,) = place.iterdir()
    told = f"More about the failure of the run (spark.log) is in {folder}. "
    assert notes == [told + "Delete the folder when you have seen it."]


def test_a_run_that_ends_well_leaves_only_dead_letters(place: Path) -> None:
    """The summary names their place."""
    notes: list[str] = []
    with temporary_checkpoint(notes.append) as checkpoint:
        run_over(checkpoint.folder, None, spark_log="INFO")
    assert list(place.iterdir()) == []
    with temporary_checkpoint(notes.append) as checkpoint:
        leave_dead_letters(checkpoint.folder)
    assert list(place.iterdir()) == [checkpoint.folder]
    assert notes == []


def test_dead_letters_of_a_failed_run_are_named(place: Path) -> None:
    """Their place is reported with the error that stopped the job."""
    notes: list[str] = []
    with temporary_checkpoint(notes.append) as checkpoint:
        leave_dead_letters(checkpoint.folder)
    with pytest.raises(JobFailedError), keep_on_failure(place, checkpoint.folder, notes.append):
        run_over(checkpoint.folder, FAILED, spark_log="")
    assert "the failure of the run (dead-letters) is in" in notes[0]


def test_an_interrupted_run_leaves_nothing(place: Path) -> None:
    """A user who presses Ctrl-C twice knows why it ended."""
    with pytest.raises(KeyboardInterrupt), temporary_checkpoint(print) as checkpoint:
        run_over(checkpoint.folder, KeyboardInterrupt(), spark_log="INFO")
    assert list(place.iterdir()) == []


def test_a_folder_of_more_than_a_checkpoint(place: Path) -> None:
    """An example is the demo's folder, which also has the input."""
    notes: list[str] = []
    checkpoint = place / "demo" / "checkpoint"
    checkpoint.mkdir(parents=True)
    with pytest.raises(JobFailedError), keep_on_failure(place / "demo", checkpoint, notes.append):
        run_over(checkpoint, FAILED, output_log="printed")
    assert f"(output.log) is in {checkpoint}. Delete {place / 'demo'} when" in notes[0]
