"""Managers that die, are suspended or lose the lead: the next one continues their work, and nothing is done
twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from managed_place import PATIENCE_S, ManagedPlace

from penstock.errors import StoreError
from penstock.server.lifecycle.decisions import Decision, Driver, DriverState, JobFacts, decide
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager
from penstock.server.runs.processes import Processes


def test_another_manager_finds_the_drivers(place: ManagedPlace) -> None:
    """Nothing is started twice, and the next manager completes what the first one began."""
    job_id = place.running("works", "fixed-delay:attempts=9,delay=0s")
    pid = place.pid(job_id)
    # The first manager is gone.
    second = place.new_manager()
    place.work(lambda: second.leads, manager=second)
    for _ in range(5):
        second.look()
    assert place.pid(job_id) == pid
    assert place.service.get(job_id).status is JobStatus.RUNNING
    place.kill_driver(job_id)
    # Its parent still lives but does not wait for it: it is a zombie, which counts as dead.
    place.work(lambda: place.service.get(job_id).run == 2, manager=second)
    place.until(job_id, JobStatus.RUNNING, second)
    place.service.cancel(job_id, "ann")
    place.until(job_id, JobStatus.CANCELED, second)
    assert place.runs(job_id) == ["1", "2"]


@pytest.mark.parametrize("effect", ["_launch", "_ask_stop", "_record"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_dies_beside_an_effect_loses_nothing(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch, effect: str, when: str
) -> None:
    """It dies before or after the effect; the next manager continues."""

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


def test_a_manager_that_does_not_lead_does_nothing(place: ManagedPlace) -> None:
    """It waits for the lease."""
    place.manager = place.new_manager(lease_s=60)
    place.work(lambda: place.manager.leads)
    job_id = place.submit("works")
    second = place.new_manager(lease_s=60)
    second.look()
    assert not second.leads
    assert place.service.get(job_id).status is JobStatus.CREATED


def test_a_manager_that_stood_still_does_nothing_more(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its observation and its action another came to lead, which it notices before it acts."""
    place.work(lambda: place.manager.leads)
    job_id = place.submit("works")
    second = place.new_manager()

    def stands_still(job: JobFacts, driver: Driver, now_ms: int) -> Decision:
        if driver.state is DriverState.UNLAUNCHED:
            while not second._renew_lead():
                time.sleep(0.02)
        return decide(job, driver, now_ms)

    monkeypatch.setattr(manager_module, "decide", stands_still)
    place.manager.look()
    assert place.service.get(job_id).status is JobStatus.STARTING
    assert not place.manager.leads
    assert list(place.home.run(job_id, 1).iterdir()) == []
    place.until(job_id, JobStatus.RUNNING, second)
    assert place.runs(job_id) == ["1"]


@pytest.mark.parametrize("effect", ["LAUNCH", "ASK_STOP", "TERMINATE"])
def test_a_leader_that_stands_still_in_the_midst_of_an_act_changes_nothing_later(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    """It is suspended after its last check of the lead: another does the action meanwhile, and it is not done
    twice.
    """
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
        # The suspended pass ends here.

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
        # The earlier request is refused by the run for which it was not meant.
        requests = place.service.checkpoint(job_id) / "requests"
        place.work(lambda: (requests / "pause-1.answer").exists(), manager=second)
        assert b"The request is for run 1" in (requests / "pause-1.answer").read_bytes()
    for _ in range(5):
        second.look()
    assert len(place.service.events(job_id)) == seen
    assert place.runs(job_id) == (["1", "2"] if effect == "ASK_STOP" else ["1"])


def test_a_manager_leads_when_that_is_on_record(place: ManagedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails in between: it does not act before the event is recorded, which happens once."""
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
