"""Requests: the requests of other processes to a running job, as files in its checkpoint, and the answers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.ownership import lock_checkpoint
from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.errors import CheckpointError, JobFailedError
from penstock.jobs.job_log import job_log

__all__ = [
    "Answer",
    "Request",
    "Requests",
    "answer_to",
    "ask",
    "folder_of_run",
    "is_running",
    "new_request",
    "no_run_here",
    "post",
]

_FOLDER: Final = "requests"
_POLL_S: Final = 0.05


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a job: to stop, optionally with a savepoint and after draining its input, or to rescale.

    `by` is the name of the requesting user. `run` is the number of the requested run, None for any. A requester that
    repeats a request to later runs gives each one the same `operation`.
    """

    id: str
    action: Literal["stop", "rescale"]
    savepoint: str | None = None
    savepoint_id: str | None = None
    drain: bool = False
    parallelism: int = 0
    by: str = ""
    run: int | None = None
    operation: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The result of a request; without an error it was carried out."""

    error: str = ""
    details: dict[str, Any] = {}


class Requests:
    """The requests to a job, as the job sees them. It refuses those from before its start.

    It takes each id once: a requester that is killed and restarted asks again, since it cannot know. It refuses
    requests to another run: the requester may have been suspended meanwhile. `run` is the number of this run, if any.
    """

    def __init__(self, checkpoint: Path, run: int | None = None) -> None:
        self._folder: Final = checkpoint / _FOLDER
        self._run: Final = run
        self._taken: set[str] = set()
        self._unwritten: dict[str, Answer] = {}
        self._folder.mkdir(exist_ok=True)
        for path in list(self._folder.iterdir()):
            path.unlink(missing_ok=True)
            if path.suffix == ".request":
                # The requester may still wait: it can ask as soon as the job has locked the checkpoint.
                self._write(path.stem, Answer("The job was still starting when it was asked. Ask it again."))

    def next(self) -> Request | None:
        """Return the next request, or None."""
        for unwritten, answer in list(self._unwritten.items()):
            with contextlib.suppress(OSError):
                self._write(unwritten, answer)
        names = sorted(n for n in os.listdir(self._folder) if n.endswith(".request"))  # noqa: PTH208  # quicker
        if not names:
            return None
        path = self._folder / names[0]
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # The requester has just withdrawn it.
            return None
        path.unlink(missing_ok=True)
        if names[0] in self._taken:
            return None
        self._taken.add(names[0])
        name = names[0].removesuffix(".request")
        try:
            request = msgspec.json.decode(data, type=Request)
        except msgspec.MsgspecError as e:
            self._write(name, Answer(f"The request cannot be read: {e}."))
            return None
        if request.run not in (None, self._run):
            self._write(name, Answer(f"The request is for run {request.run}, which has ended. Ask again."))
            return None
        return request

    def answer(self, request: Request, answer: Answer) -> None:
        """Answer a request. If the disk is full, `next` tries to write the answer again."""
        try:
            self._write(request.id, answer)
        except OSError as e:
            job_log.warning("The answer to the request %s cannot be written now: %s.", request.id, e)

    def _write(self, name: str, answer: Answer) -> None:
        self._unwritten[name] = answer
        write_atomically(self._folder / f"{name}.answer", msgspec.json.encode(answer))
        del self._unwritten[name]


def is_running(checkpoint: Path) -> bool:
    """Return whether a run uses a checkpoint."""
    try:
        with lock_checkpoint(checkpoint, threading.Event(), 0):
            return False
    except CheckpointError:
        return True


def folder_of_run(uri: str) -> Path | None:
    """Return the folder of this machine's run whose checkpoint is on an object store; None if there is no such run.

    What an earlier run has left here may be older than the checkpoint.
    """
    folder = working_folder(uri)
    return folder if folder.is_dir() and is_running(folder) else None


def no_run_here(uri: str) -> CheckpointError:
    """Return the error for a request that only the run of a checkpoint on an object store can carry out."""
    return CheckpointError(
        f"No run on this machine uses the checkpoint {uri}. Give the command where the job runs, while it runs."
    )


def post(checkpoint: Path, request: Request) -> None:
    """Send a request to a running job without waiting for the answer."""
    write_atomically(checkpoint / _FOLDER / f"{request.id}.request", msgspec.json.encode(request))


def answer_to(checkpoint: Path, request_id: str) -> Answer | None:
    """Return the answer to a request, None if there is none yet. It stays until the job starts again."""
    try:
        data = (checkpoint / _FOLDER / f"{request_id}.answer").read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Answer)


def ask(checkpoint: Path, request: Request, timeout_s: float) -> dict[str, Any]:
    """Send a request to a running job and wait for the answer; return its details.

    Raises JobFailedError when the job cannot do it, ends before it answers, or takes longer than the timeout.
    """
    post(checkpoint, request)
    folder = checkpoint / _FOLDER
    deadline_s = time.monotonic() + timeout_s
    while (found := answer_to(checkpoint, request.id)) is None:
        ended = not is_running(checkpoint)
        # The answer is the last thing that a job writes.
        if ended and (found := answer_to(checkpoint, request.id)) is not None:
            break
        if ended or time.monotonic() >= deadline_s:
            (folder / f"{request.id}.request").unlink(missing_ok=True)
            how = "has ended" if ended else f"has not answered within {timeout_s:g} s"
            raise JobFailedError(
                f"The job in {checkpoint} {how}; it was asked for: {request.action}. See its log."
            )
        time.sleep(_POLL_S)
    (folder / f"{request.id}.answer").unlink(missing_ok=True)
    if found.error:
        raise JobFailedError(found.error)
    return found.details


def new_request(action: Literal["stop", "rescale"], **more: Any) -> Request:
    """Create a request with a new id."""
    return Request(id=uuid.uuid4().hex, action=action, **more)
