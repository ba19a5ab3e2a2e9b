"""Power loss: whichever unsynced files are lost, the job continues after what its outputs have.

Spark's part of the checkpoint is written by hand, and a simulated disk forgets unsynced writes.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from property_examples import some_in_test
from spark_checkpoint import SparkCheckpoint

from penstock.checkpoints import checkpoint_files, checkpoint_sync
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.checkpoint_files import COUNTS_FILE, mark_begun
from penstock.checkpoints.checkpoint_sync import CheckpointSync
from penstock.checkpoints.recovery import recover
from penstock.doctor.checkpoints import examine_checkpoint
from penstock.errors import CheckpointError, CheckpointMovedError
from penstock.runtime.cuts import batch_numbers
from penstock.sources.journal import JournalWriter

BATCHES = 6
FATES = ("whole", "missing", "empty", "truncated")


@dataclass
class Disk:
    """Tracks which files, and which of their names, are durable."""

    root: Path
    contents: set[tuple[Path, int]] = field(default_factory=set)
    names: set[Path] = field(default_factory=set)

    def sync_file(self, path: Path) -> None:
        self.contents.add((path, path.stat().st_ino))

    def sync_folder(self, folder: Path) -> None:
        self.names.update(folder.iterdir())

    def sync_file_system(self, folder: Path) -> None:  # everything is on one
        for path in self.root.rglob("*"):
            self.sync_file(path)
            self.names.add(path)

    def keeps(self, path: Path) -> bool:
        """Return whether a file survives a power loss, with its name and content."""
        inside = [path, *(above for above in path.parents if self.root in above.parents)]
        return (path, path.stat().st_ino) in self.contents and self.names.issuperset(inside)


@dataclass
class Job:
    """A job without its JVM: its micro-batches in single steps, and its output."""

    checkpoint: Checkpoint
    spark: SparkCheckpoint
    disk: Disk
    sync: CheckpointSync
    begins: int = 0
    written: dict[int, bytes] = field(default_factory=dict)

    def steps(self) -> Iterator[None]:
        """Run micro-batches; power may be lost at each step."""
        if self.begins == 0:
            self.spark.start()
        for batch in range(self.begins, BATCHES):
            # A micro-batch that is planned again may have another cut.
            planned = self.spark.folder / "offsets" / str(batch)
            if not planned.exists():
                self.spark.plan(batch, (batch + 1) * 10 + random.randrange(5))
            yield
            # As early as possible, so that it misses what tasks write meanwhile.
            self.sync.wait(batch)
            self.spark.work(batch)
            yield
            self.written[batch] = planned.read_bytes()
            yield
            self.checkpoint.save(COUNTS_FILE, {"batch": batch})
            yield
            self.spark.commit(batch)
            yield


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Job]]:
    """Return a job on a new checkpoint, with the simulated disk."""
    folder = tmp_path / "checkpoint"
    made: list[CheckpointSync] = []

    def make() -> Job:
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint = Checkpoint.open(str(folder))
        checkpoint.lineage(Lineage("id", "job", 128, 2, ("readings",)))
        # The planned positions are bytes of a journal.
        journal = JournalWriter(folder / "sources" / "readings.journal")
        journal.append([b"x" * 200])
        journal.close()
        disk = Disk(folder)
        for name in ("sync_file", "sync_folder", "sync_file_system"):
            monkeypatch.setattr(checkpoint_sync, name, getattr(disk, name))
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda file: None)
        # Nobody else changes this checkpoint.
        monkeypatch.setattr(checkpoint_files, "_BETWEEN_LOOKS_S", 0.0)
        sync = CheckpointSync(folder, functools.partial(mark_begun, checkpoint))
        made.append(sync)
        return Job(checkpoint, SparkCheckpoint(folder), disk, sync)

    yield make
    for sync in made:
        sync.close()


def run_until(job: Job, moment: int) -> bool:
    """Run to a step; return whether it exists."""
    return any(number == moment for number, _ in enumerate(job.steps()))


def lose_power(job: Job, fate: Callable[[], str]) -> int:
    """Keep or lose each file that is not durable; return how many there are."""
    lost = [path for path in job.spark.files() if not job.disk.keeps(path)]
    for path in lost:
        content = path.read_bytes()
        match fate():
            case "missing":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "truncated":
                path.write_bytes(content[: len(content) // 2])
    return len(lost)


def assert_goes_on(job: Job) -> None:
    """Check that the checkpoint is whole, and its next micro-batch is the newest one written, unchanged, or
    the one after.
    """
    recover(job.checkpoint, 100)
    folder = job.spark.folder
    planned, committed = (max(batch_numbers(folder / name), default=-1) for name in ("offsets", "commits"))
    newest = max(job.written, default=-1)
    assert committed >= newest - 1
    assert planned >= newest
    for batch, content in job.written.items():
        assert (folder / "offsets" / str(batch)).read_bytes() == content
    job.begins = committed + 1
    for _ in job.steps():
        pass
    assert recover(job.checkpoint, 100) == ""


@pytest.mark.parametrize("how", [pytest.param("missing", marks=pytest.mark.chaos), "empty", "truncated"])
def test_a_power_loss_at_any_moment_is_made_good(new_job: Callable[[], Job], how: str) -> None:
    """Here all unsynced files meet the same fate."""
    moment = 0
    while run_until(job := new_job(), moment):
        assert lose_power(job, lambda: how) > 0
        assert_goes_on(job)
        moment += 1
    assert moment == 5 * BATCHES


@pytest.mark.parametrize("seed", some_in_test(range(40), every=4))
def test_each_file_may_go_its_own_way(new_job: Callable[[], Job], seed: int) -> None:
    """Here some unsynced files survive, and some do not."""
    chance = random.Random(seed)
    job = new_job()
    run_until(job, chance.randrange(5 * BATCHES))
    lose_power(job, lambda: chance.choice(FATES))
    assert_goes_on(job)


@pytest.mark.parametrize("micro_batches", [1, 2, BATCHES])
def test_a_checkpoint_that_was_moved_has_lost_nothing(
    new_job: Callable[[], Job], tmp_path: Path, micro_batches: int
) -> None:
    """It is refused as it stands, and continues once it is moved back."""
    run_until(job := new_job(), 5 * micro_batches - 1)
    job.spark.commit(micro_batches - 1)
    made_at, moved = job.checkpoint.folder, tmp_path / "moved"
    before = sorted(path.relative_to(made_at) for path in made_at.rglob("*"))
    shutil.move(made_at, moved)
    with pytest.raises(CheckpointMovedError, match=f"written to {made_at}"):
        recover(Checkpoint.open(str(moved)), 100)
    assert sorted(path.relative_to(moved) for path in moved.rglob("*")) == before
    shutil.move(moved, made_at)
    assert recover(job.checkpoint, 100) == ""


def test_without_the_sync_the_same_losses_are_damage(
    new_job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above would detect a missing sync."""
    refused = 0
    monkeypatch.setattr(CheckpointSync, "sync_new", lambda sync: None)
    for moment in range(5 * BATCHES):
        run_until(job := new_job(), moment)
        lose_power(job, lambda: "missing")
        try:
            recover(job.checkpoint, 100)
        except CheckpointError:
            refused += 1
    assert refused > 2 * BATCHES


def test_what_is_taken_back_is_told(new_job: Callable[[], Job]) -> None:
    """The message names the torn file and the consequence; doctor reports it in advance."""
    job = new_job()
    for _ in job.steps():
        pass
    newest = job.spark.folder / "commits" / str(BATCHES - 1)
    newest.write_bytes(b"")
    found = {finding.check: finding for finding in examine_checkpoint(job.checkpoint)}["checkpoint files"]
    assert (found.status, str(newest) in found.found) == ("warning", True)
    told = recover(job.checkpoint, 100)
    assert f"{newest} is empty. No output depends on it; micro-batch {BATCHES - 1} is repeated" in told
    assert recover(job.checkpoint, 100) == ""


def damage_plan(job: Job) -> Path:
    path = job.spark.folder / "offsets" / str(BATCHES - 1)
    path.write_bytes(b"")
    return path


def damage_older_commit(job: Job) -> Path:
    path = job.spark.folder / "commits" / str(BATCHES - 2)
    path.write_bytes(b"")
    return path


def damage_state_that_is_read(job: Job) -> Path:
    (job.spark.folder / "commits" / str(BATCHES - 1)).unlink()
    path = job.spark.folder / "state" / "0" / "1" / f"{BATCHES - 1}_id{BATCHES - 1}.changelog"
    path.unlink()
    return path


def forget_the_end(job: Job) -> Path:
    """Make the checkpoint that of an earlier moment, except for the mark."""
    for log in ("offsets", "commits"):
        for number in (BATCHES - 2, BATCHES - 1):
            (job.spark.folder / log / str(number)).unlink()
    return job.spark.folder / "offsets" / str(BATCHES - 1)


@pytest.mark.parametrize("how", [damage_plan, damage_older_commit, damage_state_that_is_read, forget_the_end])
def test_what_outputs_depend_on_is_never_taken_back(
    new_job: Callable[[], Job], how: Callable[[Job], Path]
) -> None:
    """It was synced, so no power loss removes it: its absence is damage, and the job refuses to continue
    before it.
    """
    job = new_job()
    for _ in job.steps():
        pass
    path = how(job)
    before = sorted(job.spark.files())
    with pytest.raises(CheckpointError, match="Restore the file") as caught:
        recover(job.checkpoint, 100)
    assert str(path) in str(caught.value)
    assert sorted(job.spark.files()) == before


def test_a_job_that_was_never_begun_begins_again(new_job: Callable[[], Job]) -> None:
    """The first plan is torn, and Spark's own description of the query."""
    job = new_job()
    run_until(job, 0)
    for name in ("metadata", "offsets/0", "state/0/_metadata/v2/0"):
        (job.spark.folder / name).write_bytes(b"")
    assert "no micro-batch was begun" in recover(job.checkpoint, 100)
    assert job.spark.files() == []


def test_a_disk_that_fails_ends_the_run_before_its_output(
    new_job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The micro-batch is not marked as begun."""
    job = new_job()
    run_until(job, 4)

    def fail(path: Path) -> None:
        raise OSError(5, os.strerror(5), str(path))

    monkeypatch.setattr(checkpoint_sync, "sync_file", fail)
    job.spark.plan(1, 20)
    with pytest.raises(CheckpointError, match=r"cannot be synced to disk .* micro-batch 1 was not committed"):
        job.sync.wait(1)
    assert (job.checkpoint.folder / "begun.json").read_bytes().startswith(b'{"batch":0}')


def test_only_new_files_are_synced(new_job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the job has run: two log files with their checksums, and two for each part of the state."""
    job = new_job()
    run_until(job, 5 * BATCHES - 5)
    synced: list[Path] = []
    monkeypatch.setattr(checkpoint_sync, "sync_file", synced.append)
    job.sync.wait(BATCHES - 1)
    names = sorted(path.name for path in synced)
    last = BATCHES - 1
    assert names == sorted(
        [f".{last - 1}.crc", f".{last}.crc", f"{last - 1}", f"{last}", *2 * state_files(last)]
    )


def state_files(version: int) -> list[str]:
    return [f"{version}_id{version}.changelog", f"{version}_id{version}.changelog.crc", "4_id4.zip", "4.sst"]
