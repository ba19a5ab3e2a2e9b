"""A managed job on a disk that fills up: it recovers by itself once there is space; nothing is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from managed import Managed
from reliability import Injected, noting
from small_disk import SmallDisk, small_disk

from penstock.server.lifecycle.statuses import JobStatus

SEED = 9
PATIENCE_S = 400.0
LEFT = [n << 10 for n in (0, 8, 20, 40, 64, 100)]


def keep_full(managed: Managed, disk: SmallDisk, left: int, seconds: float) -> None:
    """Keep the disk nearly full for a while, while hits arrive; space freed by the job is used up as well."""
    deadline = time.monotonic() + seconds
    managed.send()
    while time.monotonic() < deadline:
        disk.fill(left)
        time.sleep(0.05)
    managed.send()


def fill_again_and_again(managed: Managed, disk: SmallDisk, injected: Injected) -> None:
    """Each time longer than a micro-batch takes, and sometimes longer than a start."""
    chance = random.Random(SEED)
    job_id = managed.submit()
    managed.send()
    managed.until(job_id, JobStatus.RUNNING, PATIENCE_S)
    managed.await_tallies(PATIENCE_S)
    for left in LEFT:
        injected.add("disk of home, checkpoint and output full under a managed job")
        keep_full(managed, disk, left, chance.choice((3, 10, 20)))
        disk.free()
        managed.await_tallies(PATIENCE_S)
        managed.until(job_id, JobStatus.RUNNING, PATIENCE_S)
    managed.service.cancel(job_id, "ann")
    managed.until(job_id, JobStatus.CANCELED, PATIENCE_S)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_managed_job_waits_for_room(tmp_path: Path) -> None:
    """Store, runs, checkpoint and output are on the disk. Pending input is processed once, when there is
    space.

    integration/test_full_disk.py runs this in `make test`, unit/server/test_decisions.py tests the manager.
    """
    with (
        small_disk(tmp_path / "disk", 48) as disk,
        noting("full disks", "-k waits_for_room", str(SEED)) as injected,
    ):
        managed = Managed(tmp_path, disk.folder)
        try:
            fill_again_and_again(managed, disk, injected)
        finally:
            managed.close()
