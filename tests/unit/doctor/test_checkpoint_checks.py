"""The doctor on checkpoints: owner, position, damage, and which job fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.described_state import STATE_FILE
from penstock.checkpoints.ownership import Ownership
from penstock.doctor.checkpoints import check_fit, checkpoint_folder, examine_checkpoint
from penstock.doctor.findings import Finding
from penstock.jobs.restore import declared_state

SCHEMA = "id INT, value DOUBLE"
LINEAGE = Lineage("abc", "rooms", 128, 2, ("readings", "commands"), Origin("dump", "d-1"), first_batch=10)
WRITTEN_S = 1_800_000_000


class Last(ps.ProcessFunction):
    last = ps.ValueState(float)

    def process_record(self, record, ctx):  # type: ignore[no-untyped-def]
        yield record


class LastText(Last):
    last = ps.ValueState(str)


def rooms(function: ps.ProcessFunction | None = None, key_groups: int = 128, step: str = "last") -> ps.Job:
    job = ps.Job("rooms", key_groups=key_groups)
    readings = job.data_stream("readings", schema=SCHEMA)
    readings.key_by("id").process(step, function or Last(), output=SCHEMA).sink_to("out")
    return job


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return an idle checkpoint after two micro-batches."""
    opened = Checkpoint.open(str(tmp_path))
    opened.begin(LINEAGE)
    opened.save(STATE_FILE, declared_state(rooms()))
    for _ in range(3):
        Ownership.take(tmp_path)
    for name, text in (("offsets", 'v1\n{}\n-\n{"position":1}'), ("commits", "v1\n{}")):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / str(number)).write_text(text)
    os.utime(tmp_path / "commits" / "1", (WRITTEN_S, WRITTEN_S))
    (tmp_path / "metadata").write_text('{"id":"7"}')
    (tmp_path / "commands").mkdir()
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "commands.files").write_text('"a"\n')
    (tmp_path / "in-use.lock").touch()
    return opened


def examined(
    checkpoint: Checkpoint, *, runs: bool = False, now_s: float = WRITTEN_S + 5
) -> dict[str, Finding]:
    before = sorted(checkpoint.folder.rglob("*"))
    found = {f.check: f for f in examine_checkpoint(checkpoint, runs=lambda folder: runs, now=lambda: now_s)}
    assert sorted(checkpoint.folder.rglob("*")) == before, "nothing is made by looking"
    return found


def test_a_whole_checkpoint_is_told(checkpoint: Checkpoint) -> None:
    """Reported are its owner, fixed settings, whether it is in use, and its position in the job's numbering."""
    found = examined(checkpoint)
    assert [finding.status for finding in found.values()] == ["ok", "ok", "ok"]
    assert found["checkpoint"].found == (
        "of the job 'rooms' (lineage abc), started 3 times, begun from dump; 128 key groups, parallelism 2, streams "
        "readings, commands"
    )
    assert found["checkpoint use"].found == "no run uses it now"
    assert found["checkpoint files"].found == (
        "intact; micro-batch 11 was committed last, at 2027-01-15 08:00:00 UTC"
    )
    assert examined(checkpoint, runs=True)["checkpoint use"].found == "a run uses it now"


def test_a_new_checkpoint_is_in_order(tmp_path: Path) -> None:
    """Its folder may or may not exist."""
    for folder in (tmp_path, tmp_path / "new"):
        (finding,) = examined(Checkpoint(folder)).values()
        assert (finding.status, finding.found) == ("ok", "none yet; the first start of a job creates it")


def test_a_job_that_was_started_but_has_read_nothing_is_in_order(checkpoint: Checkpoint) -> None:
    """There is no micro-batch to report."""
    for name in ("offsets", "commits"):
        for file in (checkpoint.folder / name).iterdir():
            file.unlink()
    assert "no micro-batch" in examined(checkpoint)["checkpoint files"].found


@pytest.mark.parametrize(
    ("damaged", "check", "said"),
    [
        ("offsets/1", "checkpoint files", "offsets/1 is empty"),
        ("commits/1", "checkpoint files", "commits/1 is empty"),
        ("sources/commands.files", "checkpoint files", "has 0 of the 1 files"),
        ("lineage.json", "checkpoint", "lineage.json cannot be read"),
        ("epoch.json", "checkpoint", "epoch.json cannot be read"),
    ],
)
def test_a_damaged_file_is_named(checkpoint: Checkpoint, damaged: str, check: str, said: str) -> None:
    """The message says what to do."""
    (checkpoint.folder / damaged).write_bytes(b"")
    finding = examined(checkpoint)[check]
    assert finding.status == "failed"
    assert said in finding.found
    assert "Restore" in finding.remedy or "delete the file" in finding.remedy


def test_changed_bytes_of_the_state_are_found(checkpoint: Checkpoint) -> None:
    """The doctor reads them, unlike a start."""
    partition = checkpoint.folder / "state" / "0" / "0"
    partition.mkdir(parents=True)
    described = checkpoint.folder / "state" / "0" / "_metadata" / "v2"
    described.mkdir(parents=True)
    (described / "0").write_text('v2\n{"stateStoreInfo":[]}')
    (checkpoint.folder / "commits" / "1").write_text("v1\n" + json.dumps({"stateUniqueIds": {"0": [["x"]]}}))
    (partition / "2_x.changelog").write_bytes(b"LZ4Block" + bytes(30))
    finding = examined(checkpoint)["checkpoint files"]
    assert finding.status == "failed"
    assert "2_x.changelog" in finding.found


def test_a_rescaling_that_was_broken_off_is_told(checkpoint: Checkpoint) -> None:
    """Some of Spark's files may be missing; the next start completes the rescaling."""
    (checkpoint.folder / "rescaling.json").touch()
    (checkpoint.folder / "metadata").unlink()
    finding = examined(checkpoint)["checkpoint files"]
    assert (finding.status, finding.found) == ("warning", "a rescaling was interrupted")
    assert "Start the job" in finding.remedy


def test_a_missing_lock_is_told(checkpoint: Checkpoint) -> None:
    """It is not created by the check."""
    (checkpoint.folder / "in-use.lock").unlink()
    finding = examined(checkpoint)["checkpoint use"]
    assert (finding.status, "in-use.lock is missing" in finding.found) == ("warning", True)


def test_a_lock_of_somebody_else_is_told(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the checkpoint is in use is then unknown."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = examined(checkpoint)["checkpoint use"]
    assert (finding.status, finding.remedy) == ("failed", "Run as the user who runs the job.")


def test_a_micro_batch_of_the_future_is_told(checkpoint: Checkpoint) -> None:
    """The clock was set back, or is another machine's."""
    finding = examined(checkpoint, now_s=WRITTEN_S - 3600)["checkpoint files"]
    assert finding.status == "warning"
    assert "3600 s in the future" in finding.found
    assert "Set the clock" in finding.remedy


@pytest.mark.parametrize(
    ("job", "said", "remedy"),
    [
        (rooms(key_groups=64), "has 128 key groups, the job 64", "Use the values of the checkpoint"),
        (rooms(step="other"), "has the steps last, and the job has other", "savepoint"),
        (rooms(LastText()), "last", "Restore the older job"),
        (ps.Job("others"), "belongs to the job 'rooms', not 'others'", "."),
    ],
)
def test_a_job_that_does_not_fit_is_told(checkpoint: Checkpoint, job: ps.Job, said: str, remedy: str) -> None:
    """The message is that of its start."""
    finding = check_fit(checkpoint, job)
    assert finding is not None
    assert finding.status == "failed"
    assert said in finding.found + finding.remedy
    assert remedy in finding.remedy


def test_a_job_that_fits_is_told(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A new checkpoint fits every job, and the check does not assign it."""
    finding = check_fit(checkpoint, rooms())
    assert finding is not None
    assert finding.status == "ok", finding
    assert check_fit(Checkpoint(tmp_path / "new"), rooms()) is None
    assert not (tmp_path / "new").exists()


def test_the_folder_of_a_checkpoint_needs_locks(tmp_path: Path) -> None:
    """The message names the option for another folder."""
    folder = checkpoint_folder(tmp_path)
    assert (folder.path, folder.has_locks, folder.setting) == (tmp_path, True, "--checkpoint")
