"""The manager with real processes, without Spark: which drivers it starts, stops and restarts."""

from __future__ import annotations

import time

import pytest
from managed_place import ManagedPlace

from penstock.errors import JobStateError
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.processes import Processes, is_alive, process_of


def test_a_job_runs_to_its_end(place: ManagedPlace) -> None:
    """It passes STARTING; its run is recorded, and its output is private."""
    job_id = place.submit("finishes")
    info = place.until(job_id, JobStatus.FINISHED)
    assert info.reason == "all is done"
    assert place.statuses(job_id)[0] == "STARTING"
    run = place.service.runs(job_id)[0]
    assert (run.run, run.end_kind, run.why) == (1, "FINISHED", "all is done")
    assert run.pid is None or run.pid > 0
    modes = {path.name: path.stat().st_mode & 0o77 for path in place.home.run(job_id, 1).iterdir()}
    assert modes["launch.json"] == modes["output.log"] == 0


def test_a_driver_that_is_killed_is_started_again(place: ManagedPlace) -> None:
    """It continues from the same checkpoint, until the strategy gives up."""
    job_id = place.submit("works", "fixed-delay:attempts=2,delay=100ms")
    for number in (1, 2, 3):
        place.until(job_id, JobStatus.RUNNING)
        place.work(lambda: place.service.runs(job_id)[0].pid is not None)
        assert place.service.get(job_id).run == number
        place.kill_driver(job_id)
        place.work(lambda: place.service.get(job_id).status is not JobStatus.RUNNING)
    info = place.until(job_id, JobStatus.FAILED)
    assert "restarted 2 times" in info.reason
    assert place.runs(job_id) == ["1", "2", "3"]
    assert [run.exit_code for run in place.service.runs(job_id)] == [-9, -9, -9]


def test_a_job_whose_checkpoint_is_away_waits_for_it(place: ManagedPlace) -> None:
    """An example is an unmounted share: the job never starts from nothing, and continues once all is back."""
    job_id = place.running("works", "fixed-delay:attempts=1,delay=0s")
    place.work(lambda: place.service.runs(job_id)[0].pid is not None)
    checkpoint = place.service.checkpoint(job_id)
    mounted = {path: path.with_name(f"{path.name}-away") for path in checkpoint.parent.glob("checkpoint*")}
    assert len(mounted) == 2, "with the leases"
    place.kill_driver(job_id)
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


def test_a_job_that_continues_another_must_find_its_checkpoint(place: ManagedPlace) -> None:
    """The other job has run with it; a job that never ran may start from nothing."""
    first = place.running("works")
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


def test_failures_and_refusals_differ(place: ManagedPlace) -> None:
    """A failure is retried; a refusal would come again."""
    job_id = place.submit("fails dies finishes", "fixed-delay:attempts=5,delay=0s")
    place.until(job_id, JobStatus.FINISHED)
    assert place.runs(job_id) == ["1", "2", "3"]
    refused = place.submit("is-refused", "fixed-delay:attempts=5,delay=0s")
    assert place.until(refused, JobStatus.FAILED).reason == "a binding is wrong"
    assert place.runs(refused) == ["1"]


def test_a_process_that_breaks_before_it_begins_has_failed(place: ManagedPlace) -> None:
    """It counts for the restart strategy; its message is in its output."""
    job_id = place.submit("breaks", "fixed-delay:attempts=1,delay=0s")
    info = place.until(job_id, JobStatus.FAILED)
    assert "ended with code 1 before it began" in info.reason
    assert place.service.get(job_id).run == 2
    assert "it broke" in place.service.log(job_id).text


def test_a_definition_that_is_gone_fails_its_job(place: ManagedPlace) -> None:
    """The reason names what is missing."""
    job_id = place.submit("works")
    (place.definitions / "small.py").unlink()
    assert "job file small.py, which does not exist" in place.until(job_id, JobStatus.FAILED).reason


def test_a_cancel_ends_a_driver_that_is_stuck(place: ManagedPlace) -> None:
    """This takes at most ten seconds, and ends its whole session."""
    job_id = place.running("is-stuck")
    pid = place.pid(job_id)
    begun = time.monotonic()
    operation = place.service.cancel(job_id, "bob")
    place.until(job_id, JobStatus.CANCELED)
    assert time.monotonic() - begun < 10
    assert process_of(pid) is None
    assert place.service.operation(operation.id).state == "DONE"
    who = [(event.who, event.what) for event in place.service.events(job_id) if event.what != "status"]
    assert who == [("ann", "asked for: submit"), ("bob", "asked for: cancel"), ("manager", "cancel is done")]


def test_a_cancel_before_the_start_starts_nothing(place: ManagedPlace) -> None:
    """Nothing is started later, either."""
    job_id = place.submit("works")
    place.service.cancel(job_id, "ann")
    place.until(job_id, JobStatus.CANCELED)
    assert place.statuses(job_id) == ["CANCELED"]
    assert not place.home.run(job_id, 1).exists()


def test_a_stop_takes_a_savepoint(place: ManagedPlace) -> None:
    """The driver gets a request, and its answer is the operation's result."""
    job_id = place.running("works")
    operation = place.service.stop(job_id, "ann", savepoint=True)
    place.until(job_id, JobStatus.FINISHED)
    done = place.service.operation(operation.id)
    assert done.state == "DONE"
    assert done.result is not None
    assert done.result["savepoint"].startswith("sp-")


def test_a_stop_with_a_savepoint_outlives_its_driver(place: ManagedPlace) -> None:
    """The driver dies before it answers; the next one is stopped instead."""
    job_id = place.running("is-stuck works", "fixed-delay:attempts=1,delay=0s")
    operation = place.service.stop(job_id, "ann", savepoint=True)
    place.until(job_id, JobStatus.STOPPING)
    place.work(lambda: place.service.get(job_id).status is JobStatus.STOPPING)
    place.kill_driver(job_id)
    place.until(job_id, JobStatus.FINISHED)
    done = place.service.operation(operation.id)
    assert done.result is not None
    assert done.result["savepoint"].endswith("-2")


def test_a_job_pauses_and_goes_on(place: ManagedPlace) -> None:
    """There is no process in between."""
    job_id = place.running("works")
    pid = place.pid(job_id)
    place.service.pause(job_id, "ann")
    place.until(job_id, JobStatus.PAUSED)
    assert process_of(pid) is None
    place.service.resume(job_id, "ann")
    place.until(job_id, JobStatus.RUNNING)
    assert place.runs(job_id) == ["1", "2"]
    assert "FAILED" not in place.statuses(job_id)


def test_a_running_job_is_rescaled_by_its_driver(place: ManagedPlace) -> None:
    """The operation has its answer."""
    job_id = place.submit("works")
    operation = place.service.rescale(job_id, 3, "ann")
    place.work(lambda: place.service.operation(operation.id).state == "DONE")
    assert place.service.operation(operation.id).result["after"] == 3
    assert place.service.get(job_id).status is JobStatus.RUNNING


def test_a_job_that_is_over_can_be_continued(place: ManagedPlace) -> None:
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


def test_nothing_is_left_of_a_job_that_is_deleted_before_its_process_is_awaited(
    place: ManagedPlace, monkeypatch: pytest.MonkeyPatch
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
