"""Managed jobs on Spark: drivers and managers are killed; nothing is lost, doubled, or left behind."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_process import await_true, kill
from managed import SECRET, Managed
from reliability import Injected, noting

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.lease_places import leases_of
from penstock.server.runs.leases import Lease, offer


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Managed]:
    made = Managed(tmp_path)
    yield made
    made.close()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_jobs_outlive_kills_of_drivers_and_managers(managed: Managed) -> None:
    """A driver is restarted, even by the next manager, which also adopts running drivers; then the job is
    canceled.

    `test_a_kill` covers this on Spark in `make test`; unit/server/manager/test_changing_managers.py covers
    each stage.
    """
    with noting("job manager", "-k outlive_kills_of_drivers_and_managers") as injected:
        outlive_kills(managed, injected)


def outlive_kills(managed: Managed, injected: Injected) -> None:
    """Run one job through three kills, a savepoint, and a cancel."""
    job_id = managed.submit()
    managed.send()
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()

    first = managed.pid(job_id)
    managed.send()
    injected.add("kill -9 of a driver")
    kill(first, signal.SIGKILL)
    await_true(lambda: managed.service.get(job_id).run == 2, managed.log)
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()

    second = managed.pid(job_id)
    injected.add("kill -9 of a manager")
    managed.kill_manager()
    managed.send()
    # The job works without a manager.
    managed.await_tallies()
    managed.start_manager()
    await_true(lambda: "2" in str(managed.store.events()[-1].detail.get("epoch")), managed.log)
    assert managed.pid(job_id) == second

    # Both are killed at once: the next manager finds that the driver has died.
    injected.add("kill -9 of a manager and its driver at once")
    managed.kill_manager()
    kill(second, signal.SIGKILL)
    managed.send()
    managed.start_manager()
    await_true(lambda: managed.service.get(job_id).run == 3, managed.log)
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()
    # A run reports its progress now and then.
    await_true(
        lambda: ((managed.service.get(job_id).progress or {}).get("records_in") or {}).get("hits"),
        managed.log,
    )

    savepoint = managed.service.savepoint(job_id, "ann")
    await_true(lambda: managed.service.operation(savepoint.id).state != "RUNNING", managed.log)
    await_true(lambda: managed.service.operation(savepoint.id).state in ("DONE", "FAILED"), managed.log)
    done = managed.service.operation(savepoint.id)
    assert done.result is not None, done.error
    assert [found.id for found in managed.service.savepoints()] == [done.result["id"]]
    assert managed.service.get(job_id).status is JobStatus.RUNNING

    begun_s = time.monotonic()
    managed.service.cancel(job_id, "ann")
    managed.until(job_id, JobStatus.CANCELED)
    assert time.monotonic() - begun_s < 10
    managed.kill_manager()
    await_true(lambda: not managed.processes(), lambda: f"left behind: {managed.processes()}")
    for path in managed.home.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_runs_whose_lease_is_taken_end_and_another_begins(managed: Managed) -> None:
    """Four times, while the run works or is suspended: it ends by itself, the manager starts another, nothing
    is doubled.

    unit/server/test_leases.py tests runs, unit/server/test_two_hosts.py managers.
    """
    chance = random.Random(23)
    with noting("lost leases", "-k runs_whose_lease_is_taken", "23") as injected:
        job_id = managed.submit()
        managed.send()
        managed.until(job_id, JobStatus.RUNNING)
        managed.await_tallies()
        for number in range(4):
            run, pid = managed.service.get(job_id).run, managed.pid(job_id)
            stands = number % 2 == 1
            managed.send()
            if stands:
                kill(pid, signal.SIGSTOP)
            injected.add(f"lease of a run taken while it {'stands still' if stands else 'works'}")
            taken = Lease(job="another", run=number + 1, host="elsewhere", home="/elsewhere")
            offer(leases_of(str(managed.service.checkpoint(job_id))), taken)
            time.sleep(chance.uniform(0, 5))
            managed.send()
            if stands:
                kill(pid, signal.SIGCONT)
            await_true(lambda run=run: managed.service.get(job_id).run > run, managed.log)
            managed.until(job_id, JobStatus.RUNNING)
            managed.await_tallies()
            assert pid not in managed.processes()
