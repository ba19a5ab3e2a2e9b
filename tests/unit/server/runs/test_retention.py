"""Keeping: runs, operations and what jobs print stay within bounds, and jobs that are over can be deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rest_support import RestPlace
from store_cases import become

from penstock.errors import JobStateError, UnknownIdError
from penstock.server.api.access import Role
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import OUTPUT_FILE, Processes
from penstock.server.runs.retention import Kept, keep_within, limit_output

MIB = 1 << 20


@pytest.fixture
def home(tmp_path: Path) -> ServerDirectory:
    return ServerDirectory(tmp_path / "home")


def taken_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_chatty_job_does_not_fill_the_disk(tmp_path: Path) -> None:
    """The beginning of what it prints goes, while it prints on; nothing is lost at the end, or moves."""
    path = tmp_path / "output.log"
    told = 0
    with path.open("wb", buffering=0) as output:
        for _ in range(40):
            for _ in range(1024):
                output.write(b"%08d: %s\n" % (told, b"x" * 116))
                told += 1
            limit_output(path, MIB)
            assert taken_bytes(path) <= MIB + MIB // 4
    assert path.stat().st_size == told * 127
    end = path.read_bytes()[-MIB // 2 :].splitlines()[1:]
    assert [int(line[:8]) for line in end] == list(range(told - len(end), told))


def test_output_within_the_bound_is_left_alone(tmp_path: Path) -> None:
    """Nor is there a mistake where there is none."""
    path = tmp_path / "output.log"
    limit_output(path, MIB)
    path.write_bytes(b"x" * (MIB // 2))
    limit_output(path, MIB)
    assert path.read_bytes() == b"x" * (MIB // 2)


def test_who_follows_a_log_goes_on_behind_what_is_gone(place: RestPlace) -> None:
    """From the beginning there is what is kept, and the places of the rest stay."""
    job_id = place.submit()
    leader = place.store.lead("a manager", 60_000)
    assert leader is not None
    become(place.store, leader, job_id, JobStatus.STARTING)
    folder = place.home.run(job_id, 1)
    folder.mkdir(parents=True)
    (folder / OUTPUT_FILE).write_bytes(b"old\n" * MIB + b"the end\n")
    limit_output(folder / OUTPUT_FILE, MIB)
    printed = place.service.log(job_id, begin=0, max_bytes=MIB)
    assert "\0" not in printed.text
    assert printed.text.startswith("old\n")
    assert printed.text.endswith("the end\n")
    assert place.service.log(job_id, begin=printed.end).text == ""
    assert place.service.log(job_id, max_bytes=8).text == "the end\n"


def test_the_newest_runs_and_operations_are_kept(home: ServerDirectory) -> None:
    """And those whose process lives still, or that are not done."""
    for run in range(1, 31):
        home.run("job", run).mkdir(parents=True)
    for number in range(30):
        folder = home.operation(f"op-{number}")
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    processes = Processes()
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    processes.launch(home.run("job", 3), sleeps, b"{}")
    children = list(processes._started.values())
    try:
        keep_within(home, Kept(runs=10, operations=5), [("job", 30)], {"op-7"})
        runs = sorted(int(path.name) for path in home.run("job", 1).parent.iterdir())
        assert runs == [3, *range(21, 31)]
        left = {path.name for path in home.operation("any").parent.iterdir()}
        assert left == {"op-7", *(f"op-{number}" for number in range(25, 30))}
    finally:
        for child in children:
            assert isinstance(child, subprocess.Popen)
            child.kill()
            child.wait()


def over(place: RestPlace, **more: str) -> str:
    """A job that is over, with a checkpoint and a run."""
    job_id = place.submit(**more)
    leader = place.store.lead("a manager", 60_000)
    assert leader is not None
    become(place.store, leader, job_id, JobStatus.STARTING, JobStatus.FAILED)
    for folder in (place.service.checkpoint(job_id), place.home.run(job_id, 1)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").touch()
    return job_id


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_job_that_is_over_is_deleted(place: RestPlace, checkpoint: bool) -> None:
    """With what is known of its runs; its checkpoint only if that is asked for. The events tell who did it."""
    job_id, stays = over(place), over(place)
    kept = place.service.checkpoint(job_id)
    answer = place.ask("DELETE", f"/v1/jobs/{job_id}", params={"checkpoint": checkpoint})
    assert (answer.status_code, answer.content) == (204, b"")
    assert (kept / "file").exists() is not checkpoint
    assert not place.home.run(job_id, 1).exists()
    assert [job.id for job in place.service.list_jobs()] == [stays]
    assert place.ask("DELETE", f"/v1/jobs/{job_id}").status_code == 404
    told = place.store.events(job_id)
    assert (told[-1].who, told[-1].what, told[-1].detail["checkpoint"]) == (
        "admin-person",
        "deleted",
        checkpoint,
    )
    with pytest.raises(UnknownIdError):
        place.store.run(job_id, 1)


def test_a_job_that_is_not_over_is_not_deleted(place: RestPlace) -> None:
    """Nor by an operator."""
    job_id = place.submit()
    refused = place.ask("DELETE", f"/v1/jobs/{job_id}")
    assert refused.status_code == 409
    assert "Cancel it first" in refused.json()["detail"]
    assert place.ask("DELETE", f"/v1/jobs/{over(place)}", Role.OPERATOR).status_code == 403


def test_a_checkpoint_that_another_job_has_is_not_deleted(place: RestPlace) -> None:
    """The job that went on with it must go first."""
    first = over(place)
    second = over(place, continues=first)
    with pytest.raises(JobStateError, match=f"The job {second} uses the checkpoint too"):
        place.service.delete(first, "ann", checkpoint=True)
    place.service.delete(first, "ann")
    assert place.service.checkpoint(second).exists()
    place.service.delete(second, "ann", checkpoint=True)
    assert not Path(place.home.checkpoint(first)).exists()
