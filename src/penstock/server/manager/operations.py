"""Operations: savepoints, dumps and rescales, step by step while the jobs run."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import LeadershipLostError, StoreError
from penstock.jobs.requests import Answer, Request
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.recurring_failures import RecurringFailures
from penstock.server.manager.scaling_state import reason_to_yield
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
    """The worker on operations that users requested. It takes one step per poll, so that another manager can continue.

    What needs Spark runs as a task: a CLI command in its own process. Tasks run one at a time because jobs have
    priority.

    Args:
        store: the store of the jobs.
        home: the folder of the manager.
        send: sends a request to the newest run of a job.
        answer_of: returns the answer of the newest run of a job to the request with an id, None without one.
        processes: those of tasks.

    """

    def __init__(
        self,
        store: Store,
        home: ServerDirectory,
        send: Callable[[JobRow, Request], None],
        answer_of: Callable[[JobRow, str], Answer | None],
        processes: Processes,
    ) -> None:
        self._store: Final = store
        self._home: Final = home
        self._send: Final = send
        self._answer_of: Final = answer_of
        self._processes: Final = processes
        self._failures: Final = RecurringFailures(_log)
        self._asked: set[str] = set()

    def work(self, leader: int) -> None:
        """Advance each operation as far as possible."""
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
                # This operation must not hold up others.
                self._failures.log_failure(f"The operation {operation.id} cannot continue", e)

    def _step(self, leader: int, operation: OperationRow, *, busy: bool) -> bool:
        """Advance an operation as far as possible and return whether a task is running."""
        job = self._store.job(operation.job_id)
        if self._home.operation(operation.id).exists():
            self._check_task(leader, operation)
        elif operation.kind == "rescale" and job.status is not JobStatus.PAUSED:
            self._ask_driver(leader, operation, job)
        elif not busy:
            self._start_task(leader, operation, job)
            return True
        return busy

    def _has_turn(self, leader: int, operation: OperationRow, rescaled: set[str]) -> bool:
        """Return whether a rescale may continue: one per job at a time, in the order of the requests.

        A rescale by the autoscaler ends if a user has since requested something else, unless the driver may already be
        working on it.
        """
        job = self._store.job(operation.job_id)
        if operation.state != "RUNNING" or job.status is not JobStatus.RUNNING:
            why = reason_to_yield(operation, job, self._store.unfinished_of(job.id))
            if why is not None:
                self._store.end_operation(leader, operation, error=why)
                return False
        has_turn = job.id not in rescaled
        rescaled.add(job.id)
        return has_turn

    def _ask_driver(self, leader: int, operation: OperationRow, job: JobRow) -> None:
        """Send the request to the driver once it accepts requests. If a run ends without an answer, ask the next."""
        request = Request(
            id=f"{operation.id}-{job.epoch}",
            action="rescale",
            parallelism=int(operation.arguments["parallelism"]),
            run=job.epoch,
            operation=operation.id,
        )
        answer = self._answer_of(job, request.id) if job.epoch else None
        if answer is not None and answer.error:
            self._store.end_operation(leader, operation, error=answer.error)
        elif answer is not None:
            self._store.end_operation(leader, operation, result=answer.details)
        elif job.status is JobStatus.RUNNING and request.id not in self._asked:
            self._store.mark_operation_running(leader, operation)
            self._send(job, request)
            self._asked.add(request.id)

    def _start_task(self, leader: int, operation: OperationRow, job: JobRow) -> None:
        self._store.mark_operation_running(leader, operation)
        if operation.kind == "savepoint":
            command = ["savepoint", job.checkpoint, "--to", self._home.savepoints]
        elif operation.kind == "dump":
            place, batch = self._home.dumps / operation.id, operation.arguments.get("batch")
            command = ["state", "dump", job.checkpoint, "--to", str(place)]
            command += ["--format", operation.arguments["format"]]
            command += [] if batch is None else ["--batch", str(batch)]
        else:
            command = ["rescale", job.checkpoint, "--parallelism", str(operation.arguments["parallelism"])]
        folder = self._home.operation(operation.id)
        try:
            self._processes.launch(folder, [*_CLI, *command, "-o", "json"], b"")
        except OSError as e:
            self._store.end_operation(
                leader, operation, error=f"Cannot start the process of the operation: {e}. Try again."
            )

    def _check_task(self, leader: int, operation: OperationRow) -> None:
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


def _outcome(output: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the result or the error of a task from the last such line of its output."""
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
    return (
        None,
        "Its process ended without a result: it was killed, or the machine restarted. Request it again.",
    )
