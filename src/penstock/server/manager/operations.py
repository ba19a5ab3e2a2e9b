"""Operations: savepoints, dumps and rescaling, step by step while the jobs go on."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import LeadershipLostError, StoreError
from penstock.jobs.requests import Request, answer_to, post
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.recurring_failures import RecurringFailures
from penstock.server.manager.scaling_state import outdone_by_users
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.dumps import note_dump
from penstock.server.runs.processes import OUTPUT_FILE, Processes, is_alive
from penstock.server.store.row_types import JobRow, OperationRow
from penstock.server.store.store import Store

__all__ = ["OperationWorker"]

_log: Final = logging.getLogger(__name__)
_CLI: Final = (sys.executable, "-P", "-m", "penstock.cli")
_LAST_BYTES: Final = 65536


class OperationWorker:
    """Works on what users requested, one step at each look, so that another manager can continue.

    Tasks do what needs Spark: commands of the command line in their own process, one at a time, since the jobs come
    first.
    """

    def __init__(self, store: Store, home: ServerDirectory, processes: Processes | None = None) -> None:
        self._store: Final = store
        self._home: Final = home
        self._processes: Final = processes or Processes()
        self._failures: Final = RecurringFailures(_log)
        self._asked: set[str] = set()

    def work(self, leader: int) -> None:
        """Take each operation as far as possible now."""
        self._processes.reap()
        pending = self._store.unfinished_operations(["savepoint", "rescale", "dump"])
        busy = any(is_alive(self._home.operation(operation.id)) for operation in pending)
        rescaled: set[str] = set()
        for operation in pending:
            try:
                if operation.kind == "rescale" and not self._has_turn(leader, operation, rescaled):
                    continue
                busy = self._step(leader, operation, busy=busy)
            except (LeadershipLostError, StoreError):
                raise
            except Exception as e:
                # Other operations must not wait for it.
                self._failures.failed(f"The operation {operation.id} cannot go on", e)

    def _step(self, leader: int, operation: OperationRow, *, busy: bool) -> bool:
        """Take an operation as far as possible now; returns whether a task is at work."""
        job = self._store.job(operation.job_id)
        if self._home.operation(operation.id).exists():
            self._look_at_task(leader, operation)
        elif operation.kind == "rescale" and job.status is not JobStatus.PAUSED:
            self._ask_driver(leader, operation, job)
        elif not busy:
            self._start_task(leader, operation, job)
            return True
        return busy

    def _has_turn(self, leader: int, operation: OperationRow, rescaled: set[str]) -> bool:
        """Whether a rescale may go on: one per job at a time, in the order of the requests.

        One by the autoscaler ends when a user has requested something else since, unless the driver may be at it.
        """
        job = self._store.job(operation.job_id)
        if operation.state != "RUNNING" or job.status is not JobStatus.RUNNING:
            why = outdone_by_users(operation, job, self._store.unfinished_of(job.id))
            if why is not None:
                self._store.end_operation(leader, operation, error=why)
                return False
        has_turn = job.id not in rescaled
        rescaled.add(job.id)
        return has_turn

    def _ask_driver(self, leader: int, operation: OperationRow, job: JobRow) -> None:
        """Ask the driver, once it takes requests. When a run ends without an answer, the next one is asked."""
        request = Request(
            id=f"{operation.id}-{job.epoch}",
            action="rescale",
            parallelism=int(operation.arguments["parallelism"]),
            run=job.epoch,
            operation=operation.id,
        )
        checkpoint = Path(job.checkpoint)
        answer = answer_to(checkpoint, request.id) if job.epoch else None
        if answer is not None and answer.error:
            self._store.end_operation(leader, operation, error=answer.error)
        elif answer is not None:
            self._store.end_operation(leader, operation, result=answer.details)
        elif job.status is JobStatus.RUNNING and request.id not in self._asked:
            self._store.mark_operation_running(leader, operation)
            post(checkpoint, request)
            self._asked.add(request.id)

    def _start_task(self, leader: int, operation: OperationRow, job: JobRow) -> None:
        self._store.mark_operation_running(leader, operation)
        if operation.kind == "savepoint":
            command = ["savepoint", job.checkpoint, "--to", str(self._home.savepoints)]
        elif operation.kind == "dump":
            command = ["state", *_dump(job.checkpoint, self._home.dumps / operation.id, operation.arguments)]
        else:
            command = ["rescale", job.checkpoint, "--parallelism", str(operation.arguments["parallelism"])]
        folder = self._home.operation(operation.id)
        try:
            self._processes.launch(folder, [*_CLI, *command, "-o", "json"], b"")
        except OSError as e:
            self._store.end_operation(
                leader, operation, error=f"Its process cannot be started: {e}. Try again."
            )

    def _look_at_task(self, leader: int, operation: OperationRow) -> None:
        folder = self._home.operation(operation.id)
        if is_alive(folder):
            return
        result, error = _outcome(folder / OUTPUT_FILE)
        if operation.kind == "dump":
            place = self._home.dumps / operation.id
            if result is None:
                # A partial dump is useless.
                shutil.rmtree(place, ignore_errors=True)
            else:
                result = {**result, "id": operation.id}
                note_dump(self._home, operation)
        if result is not None:
            self._store.end_operation(leader, operation, result=result)
        else:
            self._store.end_operation(leader, operation, error=error)


def _dump(checkpoint: str, place: Path, arguments: dict[str, Any]) -> list[str]:
    batch = [] if arguments.get("batch") is None else ["--batch", str(arguments["batch"])]
    return ["dump", checkpoint, "--to", str(place), "--format", arguments["format"], *batch]


def _outcome(output: Path) -> tuple[dict[str, Any] | None, str]:
    """The last line that a task has printed: its result, or its error."""
    try:
        lines = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return msgspec.json.decode(line, type=dict[str, Any]), ""
            except msgspec.MsgspecError:
                continue
        if line.startswith("Error: "):
            return None, line.removeprefix("Error: ")
    return None, "Its process ended without a result; it was killed, or the machine was restarted. Ask again."
