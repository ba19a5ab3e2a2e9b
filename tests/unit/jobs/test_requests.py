"""Requests to a running job: each is answered, or the error says why not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import JobFailedError
from penstock.jobs import requests
from penstock.jobs.requests import Answer, Request, Requests, answer_to, ask, is_running, new_request, post


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Control whether the job counts as running; file locks distinguish processes, not threads."""
    running = threading.Event()
    running.set()
    monkeypatch.setattr(requests, "is_running", lambda checkpoint: running.is_set())  # as it
    return running


def at_work(job: Requests, answer: Callable[[Request], Answer]) -> threading.Thread:
    """Start a job that answers one request."""

    def run() -> None:
        while (request := job.next()) is None:
            time.sleep(0.005)
        job.answer(request, answer(request))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "requests").iterdir())


def test_what_is_asked_is_answered(tmp_path: Path, runs: threading.Event) -> None:
    """The answer has details, and no file remains."""
    job = Requests(tmp_path)
    asked = new_request("stop", savepoint="file:///there", savepoint_id="sp-1", drain=True)
    seen: list[Request] = []

    def answer(request: Request) -> Answer:
        seen.append(request)
        return Answer(details={"batch": 7})

    thread = at_work(job, answer)
    assert ask(tmp_path, asked, 30) == {"batch": 7}
    thread.join()
    assert seen == [asked]
    assert left(tmp_path) == []
    assert job.next() is None
    assert runs.is_set()


@pytest.mark.usefixtures("runs")
def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    """The error has the job's own words."""
    thread = at_work(
        Requests(tmp_path), lambda request: Answer(f"not to {request.parallelism} tasks, {request.action}")
    )
    with pytest.raises(JobFailedError, match="not to 5 tasks, rescale"):
        ask(tmp_path, new_request("rescale", parallelism=5), 30)
    thread.join()
    assert left(tmp_path) == []


def test_a_job_that_ends_without_an_answer_is_told(tmp_path: Path, runs: threading.Event) -> None:
    """This is reported at once, whether or not the job saw the request, which does not wait for the next run."""
    job = Requests(tmp_path)
    runs.clear()
    with pytest.raises(JobFailedError) as caught:
        ask(tmp_path, new_request("stop"), 30)
    assert str(caught.value) == f"The job in {tmp_path} has ended; it was asked for: stop. See its log."
    assert left(tmp_path) == []
    runs.set()

    def end() -> None:
        while job.next() is None:
            time.sleep(0.005)
        runs.clear()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(JobFailedError, match="has ended; it was asked for: rescale"):
        ask(tmp_path, new_request("rescale", parallelism=2), 30)
    thread.join()


def test_an_answer_counts_though_the_job_has_ended(tmp_path: Path, runs: threading.Event) -> None:
    """A stopping job answers last."""
    job = Requests(tmp_path)

    def answer(request: Request) -> Answer:  # as an answer
        runs.clear()
        return Answer(details={"batch": 1})

    asked = new_request("stop")
    (tmp_path / "requests").mkdir(exist_ok=True)
    job.answer(asked, answer(asked))
    assert ask(tmp_path, asked, 30) == {"batch": 1}


def test_what_is_asked_twice_is_done_once(tmp_path: Path) -> None:
    """A client that was killed cannot know whether the job took its request, and repeats it."""
    job = Requests(tmp_path)
    asked = new_request("rescale", parallelism=2)
    post(tmp_path, asked)
    assert job.next() == asked
    assert answer_to(tmp_path, asked.id) is None
    post(tmp_path, asked)
    assert job.next() is None
    assert left(tmp_path) == []
    job.answer(asked, Answer(details={"batch": 1}))
    assert answer_to(tmp_path, asked.id) == answer_to(tmp_path, asked.id) == Answer(details={"batch": 1})
    # The next run of the job has no record of this one.
    Requests(tmp_path)
    assert answer_to(tmp_path, asked.id) is None


def test_what_is_asked_of_another_run_is_refused(tmp_path: Path) -> None:
    """A manager that was suspended may address a run that is over; the next run must not stop for that."""
    job = Requests(tmp_path, run=2)
    late, fits, whichever = (
        Request(id=f"stop-{n}", action="stop", run=run) for n, run in enumerate((1, 2, None))
    )
    for asked in (late, fits, whichever):
        post(tmp_path, asked)
    assert [job.next(), job.next(), job.next()] == [None, fits, whichever]
    told = answer_to(tmp_path, late.id)
    assert told is not None
    assert "The request is for run 1" in told.error


@pytest.mark.usefixtures("runs")
def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """The wait times out, and the expired request is not carried out later."""
    job = Requests(tmp_path)
    with pytest.raises(JobFailedError) as caught:
        ask(tmp_path, new_request("stop"), 0.1)
    assert str(caught.value) == (
        f"The job in {tmp_path} has not answered within 0.1 s; it was asked for: stop. See its log."
    )
    assert job.next() is None


@pytest.mark.parametrize(
    "content",
    [b"{", b"{}", b'{"id": "x", "action": "explode"}', b'{"id": "x", "action": "stop", "drain": 1}'],
)
def test_a_request_that_cannot_be_read_is_answered(tmp_path: Path, content: bytes) -> None:
    """Requests after it are taken as well."""
    job = Requests(tmp_path)
    (tmp_path / "requests" / "a.request").write_bytes(content)
    (tmp_path / "requests" / "b.request").write_bytes(b'{"id": "b", "action": "stop"}')
    assert job.next() is None
    assert b"The request cannot be read: " in (tmp_path / "requests" / "a.answer").read_bytes()
    assert job.next() == Request(id="b", action="stop")
    assert job.next() is None


@pytest.mark.usefixtures("runs")
def test_who_asks_while_the_job_starts_is_told_so(tmp_path: Path) -> None:
    """A job has its checkpoint before it listens; requests from before its start are not carried out."""
    error: list[str] = []

    def asks() -> None:
        try:
            ask(tmp_path, new_request("stop"), 30)
        except JobFailedError as e:
            error.append(str(e))

    thread = threading.Thread(target=asks)
    thread.start()
    while not list((tmp_path).glob("requests/*.request")):
        time.sleep(0.005)
    (tmp_path / "requests" / "old.answer").write_bytes(b"{}")
    job = Requests(tmp_path)
    thread.join()
    assert error == ["The job was still starting when it was asked. Ask it again."]
    assert job.next() is None
    assert left(tmp_path) == []


def test_a_job_runs_while_another_process_holds_its_checkpoint(tmp_path: Path) -> None:
    """It counts as running only while the lock is held; checking does not take the lock away."""
    assert not is_running(tmp_path)
    program = (
        "import sys, threading; from pathlib import Path; from penstock.checkpoints.ownership import lock_checkpoint\n"
        "with lock_checkpoint(Path(sys.argv[1]), threading.Event(), 0): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        assert held.stdin is not None
        assert held.stdout.readline() == b"held\n"
        assert is_running(tmp_path)
        assert is_running(tmp_path)
        held.stdin.close()
        held.wait(30)
    assert not is_running(tmp_path)


def test_requests_have_ids_of_their_own() -> None:
    """So each gets its own answer."""
    found: list[Any] = [new_request("stop") for _ in range(100)]
    assert len({request.id for request in found}) == 100


def test_a_request_that_is_taken_back_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may withdraw a request at the moment when the job looks for it."""
    job = Requests(tmp_path)
    monkeypatch.setattr(requests.os, "listdir", lambda folder: ["gone.request"])  # as listdir
    assert job.next() is None
