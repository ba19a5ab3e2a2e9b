"""penstock's own files in a checkpoint: what they imply, and the errors when one is damaged or missing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock as ps
from penstock.checkpoints import checkpoint_files
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.checkpoint_files import check_checkpoint, mark_begun
from penstock.errors import CheckpointError, CheckpointMissingError, JobDefinitionError
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.sources.journal import JournalWriter

LINEAGE = Lineage("id", "job", 128, 2, ("readings", "commands"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint that belongs to a job which has not started."""
    opened = Checkpoint.open(str(tmp_path))
    opened.lineage(LINEAGE)
    return opened


def plan(checkpoint: Checkpoint, batch: int, position: int) -> None:
    """Write Spark's plan of a first micro-batch."""
    for name in ("offsets", "commits"):
        (checkpoint.folder / name).mkdir(exist_ok=True)
    (checkpoint.folder / "metadata").write_text('{"id":"7"}')
    lines = ["v1", "{}", json.dumps({"position": position}), "-"]
    (checkpoint.folder / "offsets" / str(batch)).write_text("\n".join(lines))


def test_a_new_checkpoint_is_accepted(tmp_path: Path) -> None:
    """Files that a user put there before the first start are no obstacle."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "in-use.lock").touch()
    (tmp_path / "spark.log").touch()
    opened = Checkpoint.open(str(tmp_path))
    check_checkpoint(opened, 100)
    assert opened.lineage(LINEAGE) == LINEAGE
    check_checkpoint(opened, 100)


def test_the_mark_never_goes_back(checkpoint: Checkpoint) -> None:
    """It names the newest micro-batch that may have been written; a late run does not lower it."""
    for batch, marked in ((0, 0), (5, 5), (4, 5), (1_000_000, 1_000_000)):
        mark_begun(checkpoint, batch)
        assert json.loads((checkpoint.folder / "begun.json").read_bytes()) == {"batch": marked}


@pytest.mark.parametrize("known", ["begun.json", "counts.json"])
def test_either_file_keeps_a_job_from_beginning_again(checkpoint: Checkpoint, known: str) -> None:
    """The mark does so, and if it is missing the counts do."""
    checkpoint.save(known, {"batch": 0})
    with pytest.raises(CheckpointError, match=r"offsets is missing, though .* would begin from nothing"):
        check_checkpoint(checkpoint, 100)


@pytest.mark.parametrize("left", ["control.json", "streams.json", "counts.json", "begun.json"])
def test_a_checkpoint_without_its_lineage_is_damaged(tmp_path: Path, left: str) -> None:
    """The remains of an old lineage never get a new one."""
    (tmp_path / left).touch()
    with pytest.raises(CheckpointError, match=r"lineage\.json is missing\. Restore the file"):
        check_checkpoint(Checkpoint.open(str(tmp_path)), 100)


@pytest.mark.parametrize("left", ["offsets", "commits", "metadata", "state"])
def test_a_checkpoint_of_another_application_is_refused(tmp_path: Path, left: str) -> None:
    """Such is a checkpoint that Spark alone has made."""
    (tmp_path / left).mkdir()
    with pytest.raises(CheckpointError, match="was not made by penstock"):
        check_checkpoint(Checkpoint.open(str(tmp_path)), 100)


def test_a_list_of_files_must_be_as_long_as_what_was_read(checkpoint: Checkpoint) -> None:
    """Otherwise files would be confused."""
    plan(checkpoint, 0, position=3)
    files = checkpoint.folder / "sources" / "readings.files"
    with pytest.raises(CheckpointError, match=r"readings\.files is missing, or readings\.journal"):
        check_checkpoint(checkpoint, 100)
    files.parent.mkdir()
    files.write_bytes(b"{}\n{}\n{")
    with pytest.raises(CheckpointError, match=r"readings\.files has 2 of the 3 files"):
        check_checkpoint(checkpoint, 100)
    files.write_bytes(b"{}\n{}\n{}\n")
    check_checkpoint(checkpoint, 100)


def test_a_journal_must_be_as_long_as_what_was_read(checkpoint: Checkpoint) -> None:
    """Otherwise new records would be taken for old ones."""
    folder = checkpoint.folder / "sources" / "readings.journal"
    writer = JournalWriter(folder)
    end = writer.append([b"a", b"b"])
    writer.close()
    plan(checkpoint, 0, position=end)
    check_checkpoint(checkpoint, 100)
    plan(checkpoint, 0, position=end + 1)
    with pytest.raises(CheckpointError, match=rf"readings\.journal has {end} of the {end + 1} bytes"):
        check_checkpoint(checkpoint, 100)


def test_what_looks_damaged_while_a_run_is_at_work_is_looked_at_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks fail, a run continues while another takes over; damage of a checkpoint at rest is reported
    soon.
    """
    looks = 0

    def work(_: float) -> None:
        nonlocal looks
        looks += 1
        plan(checkpoint, looks, position=0)
        (checkpoint.folder / "commits" / str(looks - 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        if looks < 8:
            mark_begun(checkpoint, looks + 1)

    monkeypatch.setattr(checkpoint_files, "time", SimpleNamespace(sleep=work))
    plan(checkpoint, 0, position=0)
    mark_begun(checkpoint, 1)
    check_checkpoint(checkpoint, 100)
    assert looks == 8
    mark_begun(checkpoint, 20)
    slept: list[float] = []
    monkeypatch.setattr(checkpoint_files, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(CheckpointError, match="offsets/20 is missing"):
        check_checkpoint(checkpoint, 100)
    assert len(slept) == 2


def test_a_checkpoint_that_must_be_there(tmp_path: Path) -> None:
    """Neither a missing folder nor an empty one becomes a new checkpoint; a damaged one counts as existing."""
    folder = tmp_path / "mounted" / "checkpoint"
    with pytest.raises(
        CheckpointMissingError, match=r"checkpoint, and the folder does not exist: it would begin"
    ) as e:
        Checkpoint(folder).check_there()
    assert (e.value.retryable, e.value.exit_code) == (True, 2)
    assert not folder.parent.exists()
    folder.mkdir(parents=True)
    (folder / "lost+found").mkdir()
    with pytest.raises(CheckpointMissingError, match="has nothing of it: it would begin from nothing"):
        Checkpoint(folder).check_there()
    (folder / "counts.json").touch()
    Checkpoint(folder).check_there()


def test_a_run_that_must_continue_makes_nothing(tmp_path: Path) -> None:
    """It ends before it has changed the checkpoint's folder."""
    job = ps.Job("job")
    job.data_stream("hits", schema="page INT").sink_to("out")
    bindings = {"hits": f"jsonl:{tmp_path}", "out": f"jsonl:{tmp_path / 'out'}"}
    settings = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "cp"), must_continue=True)
    with pytest.raises(CheckpointMissingError):
        JobRunner(job, settings).run()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JobDefinitionError, match="must_continue cannot be used together with fresh"):
        RunSettings(must_continue=True, checkpoint="cp", fresh=True)
    with pytest.raises(JobDefinitionError, match="must_continue cannot be used without a checkpoint"):
        RunSettings(must_continue=True)


def test_a_topic_needs_the_note_of_where_it_begins(checkpoint: Checkpoint) -> None:
    """This holds until its first micro-batch is committed: without the note the stream would start elsewhere."""
    plan(checkpoint, 0, 0)
    planned = checkpoint.folder / "offsets" / "0"
    planned.write_text('v1\n{}\n{"readings":{"0":5,"1":7},"planned_ms":1}\n-')
    path = checkpoint.folder / "sources" / "readings.topic"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    check_checkpoint(checkpoint, 100)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path} is missing"):
        check_checkpoint(checkpoint, 100)
