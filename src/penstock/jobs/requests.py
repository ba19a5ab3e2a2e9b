"""Requests: what somebody outside asks of a running job, as files in its checkpoint, and the answers."""

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
from penstock.checkpoints.ownership import locked
from penstock.errors import CheckpointError, JobFailedError
from penstock.jobs.job_log import job_log

__all__ = ["Answer", "Request", "Requests", "answer_to", "ask", "is_running", "new_request", "post"]

_FOLDER: Final = "requests"
_POLL_S: Final = 0.05


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is asked: to stop, perhaps with a savepoint and when all that is there is processed, or to rescale.

    `by` is the name of the user who asks. `run` is the number of the run that is asked, None whichever runs. Who asks
    one run after the other for the same says so with the name of the `operation`.
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
    """What came of a request; without an error it was done."""

    error: str = ""
    details: dict[str, Any] = {}


class Requests:
    """The requests to a job, as the job sees them. Those from before its start are refused.

    Each id is taken once: who asks may be killed and started again, and ask again, since it cannot know. What is asked
    of another run is refused: who asks may have stood still meanwhile. `run` is the number of this one, if it has one.
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
                # Who asked may still wait: a job can be asked as soon as it has the checkpoint.
                self._write(path.stem, Answer("The job was only starting when it was asked. Ask it again."))

    def next(self) -> Request | None:
        """The next request, or None."""
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
            # Who asked has just given up.
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
            self._write(name, Answer(f"The run {request.run} was asked, and that has ended. Ask again."))
            return None
        return request

    def answer(self, request: Request, answer: Answer) -> None:
        """Say what came of a request. What a full disk does not take is written when the next one is looked for."""
        try:
            self._write(request.id, answer)
        except OSError as e:
            job_log.warning("The answer to the request %s cannot be written now: %s.", request.id, e)

    def _write(self, name: str, answer: Answer) -> None:
        self._unwritten[name] = answer
        write_atomically(self._folder / f"{name}.answer", msgspec.json.encode(answer))
        del self._unwritten[name]


def is_running(checkpoint: Path) -> bool:
    """Whether a run uses a checkpoint."""
    try:
        with locked(checkpoint, threading.Event(), 0):
            return False
    except CheckpointError:
        return True


def post(checkpoint: Path, request: Request) -> None:
    """Ask a running job for something, and do not wait."""
    write_atomically(checkpoint / _FOLDER / f"{request.id}.request", msgspec.json.encode(request))


def answer_to(checkpoint: Path, request_id: str) -> Answer | None:
    """The answer to a request, if there is one. It stays until the job starts again."""
    try:
        data = (checkpoint / _FOLDER / f"{request_id}.answer").read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Answer)


def ask(checkpoint: Path, request: Request, timeout_s: float) -> dict[str, Any]:
    """Ask a running job for something and wait for the answer.

    Raises JobFailedError when the job cannot do it, ends before it has answered, or takes too long.
    """
    post(checkpoint, request)
    folder = checkpoint / _FOLDER
    deadline_s = time.monotonic() + timeout_s
    while (found := answer_to(checkpoint, request.id)) is None:
        ended = not is_running(checkpoint)
        # A job answers last of all.
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
    """A request with an id of its own."""
    return Request(id=uuid.uuid4().hex, action=action, **more)
