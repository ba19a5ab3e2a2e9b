"""Managers on two machines, with homes of their own and checkpoints that they share, though without Spark.

The machines are two names; each manager has its folder and its tables, and sees of the other what is in a model of an
object store and beside checkpoints.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_driver
from empty_stores import connect_to_empty
from left_drivers import kill_left_drivers
from modelled_store import ModelledStore

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import process_of, started_process
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store import row_view
from penstock.server.store.change_log import ChangeLog
from penstock.server.store.logged_transactions import LoggedTransactions
from penstock.server.store.store import Store

PATIENCE_S = 40.0
RUN_LEASE_S = 3.0


class Machine:
    """A manager with a home of its own."""

    def __init__(self, place: TwoHosts, name: str, shared: Path) -> None:
        self.name = name
        self.home = ServerDirectory(place.root / name, shared)
        settings = ManagerSettings(poll_s=0.02, lease_s=0.3, run_lease_s=RUN_LEASE_S)
        self.store = place.new_store()
        self.manager = Manager(self.store, place.catalog, self.home, settings, host=name)

    def pid(self, job_id: str, run: int) -> int:
        begun = started_process(self.home.run(job_id, run))
        assert begun is not None
        return begun.pid


class TwoHosts:
    """Two machines, north and south, and the store."""

    def __init__(self, root: Path, shared: Callable[[str], Path]) -> None:
        self.root = root
        definitions = root / "definitions"
        definitions.mkdir()
        (definitions / "small.py").write_text("works")
        (definitions / "small.yaml").write_text("job: small.py\nrestart: 'fixed-delay:attempts=9,delay=0s'\n")
        self._objects = ModelledStore()
        self.store = self.new_store()
        self.catalog = Catalog([definitions])
        self.north = Machine(self, "north", shared("north"))
        self.south = Machine(self, "south", shared("south"))
        self.service = JobService(self.store, self.catalog, self.north.home)

    def new_store(self) -> Store:
        return Store(LoggedTransactions(ChangeLog(self._objects, "s3://bucket/server")))

    def submit(self) -> str:
        operation = self.service.submit(Submission(definition="small"), "ann")
        assert operation.result is not None
        job_id: str = operation.result["job"]
        return job_id

    def work(self, done: Callable[[], Any], *machines: Machine) -> None:
        """Let managers work until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, [(e.what, e.detail) for e in self.store.events()]
            for machine in machines:
                machine.manager.look()
            time.sleep(0.05)

    def until(self, job_id: str, status: JobStatus, *machines: Machine) -> None:
        self.work(lambda: self.service.get(job_id).status is status, *machines)

    def running_in_the_north(self) -> str:
        """A job that the manager of the north has started, which then is no more heard of."""
        job_id = self.submit()
        self.until(job_id, JobStatus.RUNNING, self.north)
        self.work(lambda: self.south.manager.leads, self.south)
        return job_id

    def await_end(self, pid: int) -> None:
        """A process ends, whose last word may have been heard."""
        self.work(lambda: process_of(pid) is None)

    def runs(self, job_id: str) -> list[str]:
        return (self.service.checkpoint(job_id) / "runs").read_text().split()

    def close(self) -> None:
        kill_left_drivers(self.root)
        for store in (self.store, self.north.store, self.south.store):
            store.close()


@pytest.fixture(autouse=True)
def tables_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_view, "connect", connect_to_empty)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoHosts]:
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    made = TwoHosts(tmp_path, lambda _: tmp_path / "shared")
    yield made
    made.close()


def test_a_run_on_another_machine_is_left_alone_while_it_lives(hosts: TwoHosts) -> None:
    """And what users want of it is done: it pauses, by a request in the checkpoint, and continues here."""
    job_id = hosts.running_in_the_north()
    pid = hosts.north.pid(job_id, 1)
    deadline = time.monotonic() + 2 * RUN_LEASE_S
    hosts.work(lambda: time.monotonic() > deadline, hosts.south)
    assert hosts.service.get(job_id).run == 1
    assert process_of(pid) is not None

    hosts.service.pause(job_id, "ann")
    hosts.until(job_id, JobStatus.PAUSED, hosts.south)
    hosts.await_end(pid)
    hosts.service.resume(job_id, "ann")
    hosts.until(job_id, JobStatus.RUNNING, hosts.south)
    assert [run.host for run in hosts.service.runs(job_id)] == ["south", "north"]
    assert process_of(hosts.south.pid(job_id, 2)) is not None


def test_a_run_on_another_machine_is_canceled(hosts: TwoHosts) -> None:
    """No signal reaches it from here: it ends itself."""
    job_id = hosts.running_in_the_north()
    begun_s = time.monotonic()
    hosts.service.cancel(job_id, "ann")
    hosts.until(job_id, JobStatus.CANCELED, hosts.south)
    assert time.monotonic() - begun_s < 10
    hosts.await_end(hosts.north.pid(job_id, 1))


def test_a_job_goes_on_when_its_machine_is_gone(hosts: TwoHosts) -> None:
    """Its driver and manager are: the other machine waits for the lease to run out, and starts the next run."""
    job_id = hosts.running_in_the_north()
    os.kill(hosts.north.pid(job_id, 1), signal.SIGKILL)
    (hosts.service.checkpoint(job_id) / "at-work").unlink()
    begun_s = time.monotonic()
    hosts.work(lambda: hosts.service.get(job_id).run == 2, hosts.south)
    assert time.monotonic() - begun_s >= RUN_LEASE_S / 2
    hosts.until(job_id, JobStatus.RUNNING, hosts.south)
    assert hosts.runs(job_id) == ["1", "2"]
    assert "Its lease on north has not changed" in hosts.service.runs(job_id)[1].why
    # The north is there again. It leads, and knows the job as it is.
    hosts.work(lambda: hosts.north.manager.leads, hosts.north)
    assert hosts.service.get(job_id).run == 2
    assert process_of(hosts.south.pid(job_id, 2)) is not None
    hosts.service.cancel(job_id, "ann")
    hosts.until(job_id, JobStatus.CANCELED, hosts.north)
    hosts.await_end(hosts.south.pid(job_id, 2))


def test_a_driver_that_stood_still_ends_when_another_has_its_checkpoint(hosts: TwoHosts) -> None:
    """It notices with its next beat, and ends itself, since no manager sees it."""
    job_id = hosts.running_in_the_north()
    zombie = hosts.north.pid(job_id, 1)
    os.kill(zombie, signal.SIGSTOP)
    # What the first run has written to tell two at once apart.
    (hosts.service.checkpoint(job_id) / "at-work").unlink()
    hosts.work(lambda: hosts.service.get(job_id).run == 2, hosts.south)
    hosts.until(job_id, JobStatus.RUNNING, hosts.south)
    os.kill(zombie, signal.SIGCONT)
    hosts.await_end(zombie)
    assert hosts.service.get(job_id).status is JobStatus.RUNNING
    assert hosts.service.get(job_id).run == 2


def test_a_start_that_was_recorded_only_is_made_up_for(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager died before the launch, and its machine is gone: it counts as no failure."""
    job_id = hosts.submit()
    with monkeypatch.context() as patch:
        patch.setattr(Manager, "_launch", lambda *_: None)
        hosts.until(job_id, JobStatus.STARTING, hosts.north)
    hosts.work(lambda: hosts.service.get(job_id).status is JobStatus.RUNNING, hosts.south)
    assert hosts.runs(job_id) == ["2"]
    assert hosts.service.get(job_id).restarts == 0
    # Too late: the north starts its run, which finds that it has lost the checkpoint.
    hosts.north.manager._launch(hosts.store.job(job_id), hosts.north.home.run(job_id, 1))


def test_without_a_shared_checkpoint_a_run_elsewhere_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another run would begin from nothing, so that there is none; the log says so, once."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    hosts = TwoHosts(tmp_path, lambda name: tmp_path / name)
    try:
        job_id = hosts.running_in_the_north()
        os.kill(hosts.north.pid(job_id, 1), signal.SIGKILL)
        aside = tmp_path / "not-seen-from-the-south"
        (tmp_path / "north").rename(aside)
        deadline = time.monotonic() + 2 * RUN_LEASE_S
        hosts.work(lambda: time.monotonic() > deadline, hosts.south)
        info = hosts.service.get(job_id)
        assert (info.status, info.run) == (JobStatus.RUNNING, 1)
        assert caplog.text.count("is not shared with this one") == 1
    finally:
        hosts.close()
