"""The manager with real processes, though without Spark: what it starts, finds again, and ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_driver
from small_disk import small_disk

from penstock.errors import JobStateError, StoreError
from penstock.jobs.requests import Request
from penstock.server.lifecycle import decisions
from penstock.server.lifecycle.decisions import Decision, Driver, DriverState, JobFacts, decide
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager import operations
from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.manager.operations import OperationWorker
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import (
    BEGUN_FILE,
    Processes,
    is_alive,
    kill_all,
    process_of,
    started_process,
)
from penstock.server.service.job_resources import Job, Submission
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

PATIENCE_S = 40.0


class Place:
    """A home with definitions, a service, and managers that come and go."""

    def __init__(self, root: Path) -> None:
        self.definitions = root / "definitions"
        self.definitions.mkdir()
        self.home = ServerDirectory(root / "home")
        self.store = Store.open(sqlite_url(self.home.store))
        self.catalog = Catalog([self.definitions])
        self.service = JobService(self.store, self.catalog, self.home)
        self.manager = self.new_manager()

    def new_manager(self) -> Manager:
        return Manager(self.store, self.catalog, self.home, ManagerSettings(poll_s=0.02, lease_s=0.2))

    def define(self, name: str, words: str, restart: str = "none") -> None:
        (self.definitions / f"{name}.py").write_text(words)
        (self.definitions / f"{name}.yaml").write_text(f"job: {name}.py\nrestart: '{restart}'\n")

    def submit(self, words: str, restart: str = "none", **more: Any) -> str:
        self.define("small", words, restart)
        operation = self.service.submit(Submission(definition="small", **more), "ann")
        assert operation.result is not None
        job_id: str = operation.result["job"]
        return job_id

    def until(self, job_id: str, status: JobStatus, manager: Manager | None = None) -> Job:
        """Let the manager work until a job has a status."""
        self.work(lambda: self.service.get(job_id).status is status, lambda: self.history(job_id), manager)
        return self.service.get(job_id)

    def work(
        self, done: Callable[[], bool], told: Callable[[], Any] = str, manager: Manager | None = None
    ) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, told()
            (manager or self.manager).look()
            time.sleep(0.02)

    def history(self, job_id: str) -> list[Any]:
        return [(event.what, event.detail) for event in self.service.events(job_id)]

    def statuses(self, job_id: str) -> list[str]:
        return [event.detail["to"] for event in self.service.events(job_id) if event.what == "status"]

    def runs(self, job_id: str) -> list[str]:
        return (self.service.checkpoint(job_id) / "runs").read_text().split()

    def pid(self, job_id: str) -> int:
        begun = started_process(self.home.run(job_id, self.service.get(job_id).run))
        assert begun is not None
        return begun.pid

    def close(self) -> None:
        for path in self.home.root.rglob(BEGUN_FILE):
            begun = started_process(path.parent)
            if begun is not None:
                kill_all(begun)
        self.store.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    made = Place(tmp_path)
    yield made
    made.close()


def test_a_job_runs_to_its_end(place: Place) -> None:
    """By way of STARTING; its run is on record, and its output private."""
    job_id = place.submit("finishes")
    info = place.until(job_id, JobStatus.FINISHED)
    assert info.reason == "all is done"
    assert place.statuses(job_id)[0] == "STARTING"
    run = place.service.runs(job_id)[0]
    assert (run.run, run.end_kind, run.why) == (1, "FINISHED", "all is done")
    assert run.pid is None or run.pid > 0
    modes = {path.name: path.stat().st_mode & 0o77 for path in place.home.run(job_id, 1).iterdir()}
    assert modes["launch.json"] == modes["output.log"] == 0


def test_a_driver_that_is_killed_is_started_again(place: Place) -> None:
    """From the same checkpoint, as the strategy says, until the strategy gives up."""
    job_id = place.submit("works", "fixed-delay:attempts=2,delay=100ms")
    for number in (1, 2, 3):
        place.until(job_id, JobStatus.RUNNING)
        place.work(lambda: place.service.runs(job_id)[0].pid is not None)
        assert place.service.get(job_id).run == number
        os.kill(place.pid(job_id), signal.SIGKILL)
        (place.service.checkpoint(job_id) / "at-work").unlink()
        place.work(lambda: place.service.get(job_id).status is not JobStatus.RUNNING)
    info = place.until(job_id, JobStatus.FAILED)
    assert "restarted 2 times" in info.reason
    assert place.runs(job_id) == ["1", "2", "3"]
    assert [run.exit_code for run in place.service.runs(job_id)] == [-9, -9, -9]


def test_a_job_whose_checkpoint_is_away_waits_for_it(place: Place) -> None:
    """Such as on a share that is not mounted: it is never begun from nothing, and goes on when all is back."""
    job_id = place.submit("works", "fixed-delay:attempts=1,delay=0s")
    place.until(job_id, JobStatus.RUNNING)
    place.work(lambda: place.service.runs(job_id)[0].pid is not None)
    checkpoint = place.service.checkpoint(job_id)
    mounted = {path: path.with_name(f"{path.name}-away") for path in checkpoint.parent.glob("checkpoint*")}
    assert len(mounted) == 2, "with the leases"
    os.kill(place.pid(job_id), signal.SIGKILL)
    (checkpoint / "at-work").unlink()
    for path, away in mounted.items():
        path.rename(away)
    place.work(lambda: "waits for its checkpoint" in [event.what for event in place.service.events(job_id)])
    for _ in range(5):
        place.manager.look()
    assert place.service.get(job_id).status is JobStatus.RESTARTING
    told = [
        event.detail for event in place.service.events(job_id) if event.what == "waits for its checkpoint"
    ]
    assert len(told) == 1
    assert "the folder does not exist: it would begin from nothing" in told[0]["reason"]
    assert not any(path.exists() for path in mounted)
    checkpoint.mkdir()
    place.manager.look()
    assert place.service.get(job_id).status is JobStatus.RESTARTING, "an empty folder is no checkpoint"
    checkpoint.rmdir()
    for path, away in mounted.items():
        away.rename(path)
    assert place.until(job_id, JobStatus.RUNNING).run == 2
    assert place.runs(job_id) == ["1", "2"]


def test_a_job_that_continues_another_must_find_its_checkpoint(place: Place) -> None:
    """Which that one has run with; a job that never ran may begin from nothing."""
    first = place.submit("works")
    place.until(first, JobStatus.RUNNING)
    checkpoint = place.service.checkpoint(first)
    assert place.store.has_run(str(checkpoint))
    assert not place.store.has_run(str(checkpoint.parent))
    place.service.cancel(first, "ann")
    place.until(first, JobStatus.CANCELED)
    checkpoint.rename(checkpoint.with_name("away"))
    second = place.submit("works", continues=first)
    place.work(lambda: "waits for its checkpoint" in [event.what for event in place.service.events(second)])
    assert place.service.get(second).run == 0
    checkpoint.with_name("away").rename(checkpoint)
    place.until(second, JobStatus.RUNNING)


def test_failures_and_refusals_differ(place: Place) -> None:
    """One is tried again, the other would come again."""
    job_id = place.submit("fails dies finishes", "fixed-delay:attempts=5,delay=0s")
    place.until(job_id, JobStatus.FINISHED)
    assert place.runs(job_id) == ["1", "2", "3"]
    refused = place.submit("is-refused", "fixed-delay:attempts=5,delay=0s")
    assert place.until(refused, JobStatus.FAILED).reason == "a binding is wrong"
    assert place.runs(refused) == ["1"]


def test_a_process_that_breaks_before_it_begins_has_failed(place: Place) -> None:
    """It is not started again and again behind the strategy's back; what it said is in its output."""
    job_id = place.submit("breaks", "fixed-delay:attempts=1,delay=0s")
    info = place.until(job_id, JobStatus.FAILED)
    assert "ended with code 1 before it began" in info.reason
    assert place.service.get(job_id).run == 2
    assert "it broke" in place.service.log(job_id).text


def test_a_definition_that_is_gone_fails_its_job(place: Place) -> None:
    """With the name of what is missing."""
    job_id = place.submit("works")
    (place.definitions / "small.py").unlink()
    assert "job file small.py, which does not exist" in place.until(job_id, JobStatus.FAILED).reason


def test_a_cancel_ends_a_driver_that_is_stuck(place: Place) -> None:
    """Within ten seconds, with all of its session."""
    job_id = place.submit("is-stuck")
    place.until(job_id, JobStatus.RUNNING)
    pid = place.pid(job_id)
    begun = time.monotonic()
    operation = place.service.cancel(job_id, "bob")
    place.until(job_id, JobStatus.CANCELED)
    assert time.monotonic() - begun < 10
    assert process_of(pid) is None
    assert place.service.operation(operation.id).state == "DONE"
    who = [(event.who, event.what) for event in place.service.events(job_id) if event.what != "status"]
    assert who == [("ann", "asked for: submit"), ("bob", "asked for: cancel"), ("manager", "cancel is done")]


def test_a_cancel_before_the_start_starts_nothing(place: Place) -> None:
    """Nor later."""
    job_id = place.submit("works")
    place.service.cancel(job_id, "ann")
    place.until(job_id, JobStatus.CANCELED)
    assert place.statuses(job_id) == ["CANCELED"]
    assert not place.home.run(job_id, 1).exists()


def test_a_stop_takes_a_savepoint(place: Place) -> None:
    """The driver is asked, and its answer is the operation's result."""
    job_id = place.submit("works")
    place.until(job_id, JobStatus.RUNNING)
    operation = place.service.stop(job_id, "ann", savepoint=True)
    place.until(job_id, JobStatus.FINISHED)
    done = place.service.operation(operation.id)
    assert done.state == "DONE"
    assert done.result is not None
    assert done.result["savepoint"].startswith("sp-")


def test_a_stop_with_a_savepoint_outlives_its_driver(place: Place) -> None:
    """It dies before it answers; the next one is stopped in its place."""
    job_id = place.submit("is-stuck works", "fixed-delay:attempts=1,delay=0s")
    place.until(job_id, JobStatus.RUNNING)
    operation = place.service.stop(job_id, "ann", savepoint=True)
    place.until(job_id, JobStatus.STOPPING)
    place.work(lambda: place.service.get(job_id).status is JobStatus.STOPPING)
    os.kill(place.pid(job_id), signal.SIGKILL)
    (place.service.checkpoint(job_id) / "at-work").unlink()
    place.until(job_id, JobStatus.FINISHED)
    done = place.service.operation(operation.id)
    assert done.result is not None
    assert done.result["savepoint"].endswith("-2")


def test_a_job_pauses_and_goes_on(place: Place) -> None:
    """Without a process meanwhile."""
    job_id = place.submit("works")
    place.until(job_id, JobStatus.RUNNING)
    pid = place.pid(job_id)
    place.service.pause(job_id, "ann")
    place.until(job_id, JobStatus.PAUSED)
    assert process_of(pid) is None
    place.service.resume(job_id, "ann")
    place.until(job_id, JobStatus.RUNNING)
    assert place.runs(job_id) == ["1", "2"]
    assert "FAILED" not in place.statuses(job_id)


def test_a_running_job_is_rescaled_by_its_driver(place: Place) -> None:
    """The operation has its answer."""
    job_id = place.submit("works")
    operation = place.service.rescale(job_id, 3, "ann")
    place.work(lambda: place.service.operation(operation.id).state == "DONE")
    assert place.service.operation(operation.id).result["after"] == 3
    assert place.service.get(job_id).status is JobStatus.RUNNING


def test_another_manager_finds_the_drivers(place: Place) -> None:
    """Nothing is started twice, and what one began the next one ends."""
    job_id = place.submit("works", "fixed-delay:attempts=9,delay=0s")
    place.until(job_id, JobStatus.RUNNING)
    pid = place.pid(job_id)
    # The first one is no more.
    second = place.new_manager()
    place.work(lambda: second.leads, manager=second)
    for _ in range(5):
        second.look()
    assert place.pid(job_id) == pid
    assert place.service.get(job_id).status is JobStatus.RUNNING
    os.kill(pid, signal.SIGKILL)
    (place.service.checkpoint(job_id) / "at-work").unlink()
    # Its parent lives still, though it awaits nothing: a zombie, which counts as dead.
    place.work(lambda: place.service.get(job_id).run == 2, manager=second)
    place.until(job_id, JobStatus.RUNNING, second)
    place.service.cancel(job_id, "ann")
    place.until(job_id, JobStatus.CANCELED, second)
    assert place.runs(job_id) == ["1", "2"]


@pytest.mark.parametrize("effect", ["_launch", "_ask_stop", "_record"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_dies_beside_an_effect_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, effect: str, when: str
) -> None:
    """Each time before or behind it; the next manager goes on."""

    class KilledError(BaseException):
        pass

    act = getattr(Manager, effect)

    def dies(self: Manager, *arguments: Any) -> Any:
        if when == "after":
            act(self, *arguments)
        raise KilledError

    job_id = place.submit("works")
    stopped = False
    for number in range(400):
        one = place.new_manager()
        monkeypatch.setattr(Manager, effect, dies if number % 2 else act)
        deadline = time.monotonic() + 1
        with contextlib.suppress(KilledError):
            while not one.leads and time.monotonic() < deadline:
                one.look()
                time.sleep(0.02)
            one.look()
        status = place.service.get(job_id).status
        if status is JobStatus.RUNNING and not stopped:
            place.service.stop(job_id, "ann", drain=True)
            stopped = True
        if status is JobStatus.FINISHED:
            break
    assert place.service.get(job_id).status is JobStatus.FINISHED
    assert place.runs(job_id) == ["1"]


def test_a_manager_that_does_not_lead_does_nothing(place: Place) -> None:
    """It waits for the lease."""
    place.work(lambda: place.manager.leads)
    job_id = place.submit("works")
    second = place.new_manager()
    second.look()
    assert not second.leads
    assert place.service.get(job_id).status is JobStatus.CREATED


def test_a_job_that_is_over_can_be_continued(place: Place) -> None:
    """By another with the same checkpoint; while it is not, by none."""
    first = place.submit("fails")
    with pytest.raises(JobStateError, match="Only a job that has ended can be continued"):
        place.submit("fails", continues=first)
    place.until(first, JobStatus.FAILED)
    second = place.submit("works", continues=first, parallelism=2)
    assert place.service.checkpoint(second) == place.service.checkpoint(first)
    place.until(second, JobStatus.RUNNING)
    assert place.service.get(second).progress == {"batch_id": 7}
    assert is_alive(place.home.run(second, 1))


def test_a_manager_that_stood_still_does_nothing_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its act another came to lead, which it notices before it acts."""
    place.work(lambda: place.manager.leads)
    job_id = place.submit("works")
    second = place.new_manager()

    def stands_still(job: JobFacts, driver: Driver, now_ms: int) -> Decision:
        if driver.state is DriverState.UNLAUNCHED:
            while not second._leading():
                time.sleep(0.02)
        return decide(job, driver, now_ms)

    monkeypatch.setattr(manager_module, "decide", stands_still)
    place.manager.look()
    assert place.service.get(job_id).status is JobStatus.STARTING
    assert not place.manager.leads
    assert list(place.home.run(job_id, 1).iterdir()) == []
    place.until(job_id, JobStatus.RUNNING, second)
    assert place.runs(job_id) == ["1"]


def test_what_cannot_be_done_for_one_holds_up_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full where one is asked for something: it is told and tried again, and the manager goes on."""
    full, fits = place.submit("works"), place.submit("works")
    place.until(full, JobStatus.RUNNING)
    place.until(fits, JobStatus.RUNNING)
    posted, broken = operations.post, True

    def post(checkpoint: Path, request: Request) -> None:
        if broken and checkpoint == place.service.checkpoint(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        posted(checkpoint, request)

    monkeypatch.setattr(operations, "post", post)
    waits = place.service.rescale(full, 2, "ann")
    done = place.service.rescale(fits, 3, "ann")
    place.work(lambda: place.service.operation(done.id).state == "DONE")
    assert place.service.operation(waits.id).state == "RUNNING"
    assert "No space left on device" in caplog.text
    broken = False
    place.work(lambda: place.service.operation(waits.id).state == "DONE")


def test_a_mistake_does_not_end_the_manager(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log, and the next look goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(OperationWorker, "work", lambda *_: 1 / 0)
        place.work(lambda: place.manager.leads)
    assert "ZeroDivisionError" in caplog.text
    place.until(place.submit("finishes"), JobStatus.FINISHED)


@pytest.mark.parametrize("effect", ["LAUNCH", "ASK_STOP", "TERMINATE"])
def test_a_leader_that_stands_still_in_the_midst_of_an_act_changes_nothing_later(
    place: Place, monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    """Behind its last look at who leads: what it does then, another has done, and it is not done twice."""
    act = {"LAUNCH": "launch", "ASK_STOP": "_ask_stop", "TERMINATE": "terminate"}[effect]
    owner: Any = {"LAUNCH": Processes, "ASK_STOP": Manager, "TERMINATE": manager_module}[effect]
    first, second = place.manager, place.new_manager()
    acts = getattr(owner, act)
    reached, goes_on = threading.Event(), threading.Event()

    def stands_still(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is thread:
            reached.set()
            assert goes_on.wait(PATIENCE_S)
        return acts(*arguments, **more)

    def works() -> None:
        while not reached.is_set():
            first.look()
        # The look that stood still is over here.

    job_id = place.submit("works", "fixed-delay:attempts=9,delay=0s")
    if effect != "LAUNCH":
        place.until(job_id, JobStatus.RUNNING)
    thread = threading.Thread(target=works)
    monkeypatch.setattr(owner, act, stands_still)
    if effect == "ASK_STOP":
        place.service.pause(job_id, "ann")
    if effect == "TERMINATE":
        place.service.cancel(job_id, "ann")
    thread.start()
    assert reached.wait(PATIENCE_S)

    place.work(lambda: second.leads, manager=second)
    ends = {"LAUNCH": JobStatus.RUNNING, "ASK_STOP": JobStatus.PAUSED, "TERMINATE": JobStatus.CANCELED}[
        effect
    ]
    place.until(job_id, ends, second)
    if effect == "ASK_STOP":
        place.service.resume(job_id, "ann")
        place.until(job_id, JobStatus.RUNNING, second)
    seen = len(place.service.events(job_id))
    goes_on.set()
    thread.join(PATIENCE_S)
    if effect == "ASK_STOP":
        # The request of before is refused by the run that did not get it.
        requests = place.service.checkpoint(job_id) / "requests"
        place.work(lambda: (requests / "pause-1.answer").exists(), manager=second)
        assert b"The request is for run 1" in (requests / "pause-1.answer").read_bytes()
    for _ in range(5):
        second.look()
    assert len(place.service.events(job_id)) == seen
    assert place.runs(job_id) == (["1", "2"] if effect == "ASK_STOP" else ["1"])


def test_a_manager_leads_when_that_is_on_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails in between: it does not act before the event is there, which is there once."""
    broken, add_event = True, place.store.add_event

    def fails(*arguments: Any) -> None:
        if broken:
            raise StoreError("The store is away.")
        add_event(*arguments)

    monkeypatch.setattr(place.store, "add_event", fails)
    job_id = place.submit("works")
    for _ in range(3):
        place.manager.look()
    assert not place.manager.leads
    assert place.service.get(job_id).status is JobStatus.CREATED
    broken = False
    place.until(job_id, JobStatus.RUNNING)
    assert [event.what for event in place.service.events()].count("a manager leads") == 1


def test_nothing_is_left_of_a_job_that_is_deleted_before_its_process_is_awaited(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager awaits it, and makes no folder anew."""
    job_id = place.submit("finishes")
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "reap", lambda _: {})
        place.until(job_id, JobStatus.FINISHED)
        place.work(lambda: not is_alive(place.home.run(job_id, 1)))
        place.service.delete(job_id, "ann", checkpoint=True)
    runs = place.home.run(job_id, 1).parent
    place.work(lambda: not place.manager._processes._started)
    assert not runs.exists()


def test_what_fails_at_every_look_is_told_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk under a lease: one line without a traceback, and the job runs when there is room again."""
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
    """With the store, runs, leases and checkpoints on it: what cannot be done is done when there is room again."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    with small_disk(tmp_path / "disk", 4) as disk:
        place = Place(disk.folder)
        try:
            running = place.submit("works")
            place.until(running, JobStatus.RUNNING)
            submitted = []
            for left in (0, 4 << 10, 12 << 10, 40 << 10):
                disk.fill(left)
                # What has no room is refused, or taken and done later; nothing may end the manager.
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


def test_a_job_that_a_full_disk_hinders_is_not_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often; its strategy would have given up after the first failure."""
    monkeypatch.setattr(decisions, "HINDERED_MS", 20)
    job_id = place.submit("is-hindered is-hindered is-hindered finishes", "fixed-delay:attempts=1,delay=0s")
    place.until(job_id, JobStatus.FINISHED)
    assert [run.end_kind for run in place.service.runs(job_id)] == ["FINISHED", *["HINDERED"] * 3]
    assert "FAILED" not in place.statuses(job_id)
