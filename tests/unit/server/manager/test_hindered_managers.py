"""Managers with an obstacle, a full disk or a bug: other work continues, and they recover."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import small_driver
from managed_place import ManagedPlace
from small_disk import small_disk

from penstock.errors import StoreError
from penstock.jobs.requests import Request
from penstock.server.lifecycle import decisions
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager.operations import OperationWorker


def test_what_cannot_be_done_for_one_holds_up_no_other(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full where a request would be written: this is logged and retried, and the manager continues."""
    full, fits = place.submit("works"), place.submit("works")
    place.until(full, JobStatus.RUNNING)
    place.until(fits, JobStatus.RUNNING)
    posted, broken = manager_module.post, True

    def post(checkpoint: Path, request: Request) -> None:
        if broken and checkpoint == place.service.checkpoint(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        posted(checkpoint, request)

    monkeypatch.setattr(manager_module, "post", post)
    waits = place.service.rescale(full, 2, "ann")
    done = place.service.rescale(fits, 3, "ann")
    place.work(lambda: place.service.operation(done.id).state == "DONE")
    assert place.service.operation(waits.id).state == "RUNNING"
    assert "No space left on device" in caplog.text
    broken = False
    place.work(lambda: place.service.operation(waits.id).state == "DONE")


def test_a_mistake_does_not_end_the_manager(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged, and the next pass continues."""
    with monkeypatch.context() as patch:
        patch.setattr(OperationWorker, "work", lambda *_: 1 / 0)
        place.work(lambda: place.manager.leads)
    assert "ZeroDivisionError" in caplog.text
    place.until(place.submit("finishes"), JobStatus.FINISHED)


def test_what_fails_at_every_look_is_told_once(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a full disk under a lease there is one line without a traceback, and the job runs once there is
    space.
    """
    offer = manager_module.offer

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(manager_module, "offer", full)
    job_id = place.submit("works")
    place.work(lambda: place.manager.leads)
    for _ in range(10):
        place.manager.look()
    told = [record for record in caplog.records if job_id in record.getMessage()]
    assert [record.exc_info for record in told] == [None]
    assert "cannot be managed now ([Errno 28] No space left on device)" in told[0].getMessage()
    monkeypatch.setattr(manager_module, "offer", offer)
    place.until(job_id, JobStatus.RUNNING)


def test_a_full_disk_under_a_manager_and_its_jobs_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store, runs, leases and checkpoints are on the disk; delayed work is done once there is space."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    with small_disk(tmp_path / "disk", 4) as disk:
        place = ManagedPlace(disk.folder)
        try:
            running = place.submit("works")
            place.until(running, JobStatus.RUNNING)
            submitted = []
            for left in (0, 4 << 10, 12 << 10, 40 << 10):
                disk.fill(left)
                # Requests without space are refused, or accepted and done later; nothing may end the manager.
                with contextlib.suppress(StoreError, OSError):
                    submitted.append(place.submit("finishes", "fixed-delay:attempts=50,delay=0s"))
                for _ in range(20):
                    disk.fill(left)
                    place.manager.look()
                disk.free()
            submitted.append(place.submit("finishes"))
            for job_id in submitted:
                place.until(job_id, JobStatus.FINISHED)
            assert place.service.get(running).status is JobStatus.RUNNING
            assert place.runs(running) == ["1"]
        finally:
            disk.free()
            place.close()
    told = [record for record in caplog.records if record.exc_info]
    assert not told, told


def test_a_job_that_a_full_disk_hinders_is_not_failed(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds however often it happens; the strategy would have given up after the first failure."""
    monkeypatch.setattr(decisions, "HINDERED_MS", 20)
    job_id = place.submit("is-hindered is-hindered is-hindered finishes", "fixed-delay:attempts=1,delay=0s")
    place.until(job_id, JobStatus.FINISHED)
    assert [run.end_kind for run in place.service.runs(job_id)] == ["FINISHED", *["HINDERED"] * 3]
    assert "FAILED" not in place.statuses(job_id)
