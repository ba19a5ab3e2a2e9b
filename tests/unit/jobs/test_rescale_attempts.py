"""A failed rescaling is answered and leaves the checkpoint unchanged; one that kills runs is not retried for
ever.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashes import Crash, crashes
from pyspark.errors import PySparkException
from rooms_job import committed_rooms

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import CheckpointError, JobFailedError, SnapshotError
from penstock.jobs import requests as requests_module
from penstock.jobs.requests import Answer, Request, Requests, answer_to
from penstock.jobs.rescale_attempts import carry_out
from penstock.savepoints import rescaling
from penstock.savepoints.rescaling import finish_rescaling, is_rescaling
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.spark import stored_state

NO_SESSION: Any = None
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/there/seed.next/x")


def asked(operation: str = "op-1", run: int = 1) -> Request:
    return Request(id=f"{operation}-{run}", action="rescale", parallelism=3, operation=operation)


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, except those of a test's runs."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FULL,
            r"to 3 tasks failed: No space left on device \(/there/seed.next/x\)\. .* Free some space, and ask again",
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            r"failed: Input/output error\. Fix that, and ask again",
        ),
        (MemoryError(), r"failed for lack of memory\. Give the machine more"),
        (
            pa.ArrowInvalid("offset overflow while concatenating"),
            r"ArrowInvalid: offset overflow .* ask again",
        ),
        (PySparkException("[JOB_ABORTED] it"), r"PySparkException: \[JOB_ABORTED\] it"),
        (SnapshotError("The file x is damaged."), r"^The file x is damaged\.$"),
    ],
)
def test_whatever_fails_is_told_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    """The checkpoint is the same to the byte, and the same request can be made again."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    before = content(checkpoint.folder)
    write_seed = rescaling.write_seed

    def fails(*arguments: Any) -> Any:
        write_seed(*arguments)
        raise error

    monkeypatch.setattr(rescaling, "write_seed", fails)
    found = carry_out(NO_SESSION, checkpoint, asked())
    assert found.lineage is None
    assert re.search(told, found.why), found.why
    assert content(checkpoint.folder) == before
    monkeypatch.setattr(rescaling, "write_seed", write_seed)
    again = carry_out(NO_SESSION, checkpoint, asked(run=2)).lineage
    assert again is not None
    assert again.parallelism == 3
    assert not {"rescaling", "seed.next", "rescale-attempts.json"} & {
        p.name for p in checkpoint.folder.iterdir()
    }


def test_what_fails_once_it_is_decided_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old tasks have no state any more; the next start completes the rescaling."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    remove = rescaling._remove

    def fails(path: Path) -> None:
        raise FULL

    monkeypatch.setattr(rescaling, "_remove", fails)
    with pytest.raises(OSError, match="No space left"):
        carry_out(NO_SESSION, checkpoint, asked())
    assert is_rescaling(checkpoint)
    monkeypatch.setattr(rescaling, "_remove", remove)
    finish_rescaling(checkpoint)
    lineage = carry_out(NO_SESSION, checkpoint, asked(run=2)).lineage
    assert lineage is not None
    assert (lineage.parallelism, lineage.first_batch) == (3, 3)


def dies_within(checkpoint: Checkpoint, request: Request, change: int) -> None:
    """Return a run that is killed during a rescaling, and the start of the next."""
    with pytest.raises(Crash), crashes(change):
        carry_out(NO_SESSION, checkpoint, request)
    finish_rescaling(checkpoint)


def test_a_rescaling_in_which_runs_die_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two deaths the request fails with that reason; another operation is tried anew, and no files
    remain.
    """
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    before = content(checkpoint.folder)
    # The kill comes late: the note is on disk, and a part of the seed.
    dies_within(checkpoint, asked(run=1), 40)
    dies_within(checkpoint, asked(run=2), 45)
    left = content(checkpoint.folder)
    del left["rescale-attempts.json"]
    assert left == before
    found = carry_out(NO_SESSION, checkpoint, asked(run=3))
    assert found.lineage is None
    assert "to 3 tasks was started 2 times, and each time the run died during it" in found.why
    assert content(checkpoint.folder) == before
    assert carry_out(NO_SESSION, checkpoint, asked("op-2")).lineage is not None


def test_one_run_may_die_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run gets the request again, and completes it."""
    original = committed_rooms(tmp_path / "original", monkeypatch).checkpoint
    expected = capture(NO_SESSION, original, Capture("dump", str(tmp_path / "d"), "csv")).digest
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    dies_within(checkpoint, asked(run=1), 40)
    assert carry_out(NO_SESSION, checkpoint, asked(run=2)).lineage is not None
    found = capture(NO_SESSION, checkpoint, Capture("dump", str(tmp_path / "e"), "csv"))
    assert found.digest == expected


def test_an_answer_that_a_full_disk_does_not_take_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the job continues."""
    requests = Requests(tmp_path)
    write = requests_module.write_atomically

    def full(*arguments: Any, **more: Any) -> None:
        raise FULL

    monkeypatch.setattr(requests_module, "write_atomically", full)
    requests.answer(asked(), Answer("no"))
    assert requests.next() is None
    assert answer_to(tmp_path, asked().id) is None
    monkeypatch.setattr(requests_module, "write_atomically", write)
    assert requests.next() is None
    assert answer_to(tmp_path, asked().id) == Answer("no")


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        (
            (
                "Job aborted ...\nOSError: [Errno 28] No space left on device: '/x/.tmp'\n...\n"
                "penstock.errors.SnapshotError: 'a/part-0' in '/x' cannot be written (No space left on device). Check"
            ),
            SnapshotError,
            "cannot be written (No space left on device)",
        ),
        (
            "Job aborted due to stage failure: java.io.IOException: No space left on device\n at",
            CheckpointError,
            "cannot be read: No space left on device. Fix the cause",
        ),
        (
            "[STATE_STORE] the version 7 is not there\n at",
            CheckpointError,
            "keeps only the newest micro-batches",
        ),
    ],
)
def test_a_full_disk_is_not_blamed_on_what_the_checkpoint_keeps(
    tmp_path: Path, text: str, kind: type[Exception], told: str
) -> None:
    """The blame is not on retained state, whether a worker ran out of space or Spark copying its state."""
    error = stored_state._failure(text, f"file://{tmp_path}", 7)
    assert type(error) is kind
    assert told in str(error)
    assert not isinstance(error, JobFailedError)
    assert ("No space" in text) == (
        isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC
    )
