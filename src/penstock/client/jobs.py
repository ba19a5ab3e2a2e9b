"""Jobs of a server: find one by its name, wait for its operations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.client.http import RefusedError, Server
from penstock.errors import JobFailedError, PenstockError
from penstock.server.lifecycle.statuses import ENDED

__all__ = ["AmbiguousJobError", "OperationFailedError", "await_operation", "find_job", "list_savepoints"]

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_SHOWN: Final = 5
_TAKEN: Final = ("savepoint is done", "stop is done")
"""The events after which there may be a savepoint."""


class AmbiguousJobError(PenstockError):
    """No job, or more than one, has this name."""

    fault = "user"


class OperationFailedError(JobFailedError):
    """An operation on a job failed at the server."""


def find_job(server: Server, called: str) -> str:
    """Return the id of the job with this id or name, or whose id begins so.

    Of several jobs with a name, the one that has not ended counts. Raises AmbiguousJobError unless it is one job.
    """
    if _ID.fullmatch(called):
        try:
            found: str = server.get(f"/v1/jobs/{called}")["id"]
            return found
        except RefusedError as e:
            if e.kind != "unknown-id":
                raise
    return choose_job(server.items("/v1/jobs"), called)


def choose_job(jobs: Sequence[dict[str, Any]], called: str) -> str:
    """Return the id of the one job with this name.

    >>> jobs = [
    ...     {"id": "rooms-2", "name": "rooms", "status": "RUNNING"},
    ...     {"id": "rooms-1", "name": "rooms", "status": "FAILED"},
    ... ]
    >>> choose_job(jobs, "rooms"), choose_job(jobs, "rooms-1")
    ('rooms-2', 'rooms-1')
    """
    named = [job for job in jobs if job["name"] == called]
    found = named or [job for job in jobs if called and job["id"].startswith(called)]
    going_on = [job for job in found if job["status"] not in ENDED]
    if len(found) > 1 and len(going_on) == 1:
        found = going_on
    if len(found) == 1:
        only: str = found[0]["id"]
        return only
    if not found:
        raise AmbiguousJobError(
            f"There is no job {called!r}, and no checkpoint of that name here. See penstock list --all."
        )
    shown = ", ".join(f"{job['id']} ({job['status']})" for job in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise AmbiguousJobError(f"{len(found)} jobs are called {called!r}: {shown}{more}. Give the id of one.")


def list_savepoints(server: Server, job_id: str) -> list[dict[str, Any]]:
    """Get the savepoints of a job that still exist, oldest first: `id, job, batch, created_at, uri`."""
    taken = set()
    for event in server.events(job=job_id):
        if event["what"] in _TAKEN:
            result = server.get(f"/v1/operations/{event['detail']['operation']}")["result"] or {}
            # The result of a stop names its savepoint; that of a savepoint is the savepoint.
            taken.add(result.get("savepoint") or result.get("id"))
    return [
        {
            "id": one["id"],
            "job": one["job_name"],
            "batch": one["batch"],
            "created_at": one["created_at"],
            "uri": one["uri"],
        }
        for one in server.items("/v1/savepoints")
        if one["id"] in taken
    ]


def await_operation(
    server: Server, operation: dict[str, Any], timeout_s: float, on_look: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Wait until an operation is done, and return it. Raises OperationFailedError when it fails or takes too long."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while operation["state"] in ("PENDING", "RUNNING"):
        if time.monotonic() >= deadline_s:
            raise OperationFailedError(
                f"The {operation['kind']} of {operation['job']} did not finish within {timeout_s:g} s. The server "
                f"continues with it as operation {operation['id']}."
            )
        on_look(operation)
        time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
        pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
        operation = server.patient_get(f"/v1/operations/{operation['id']}")
    if operation["state"] == "FAILED":
        raise OperationFailedError(
            f"The {operation['kind']} of {operation['job']} failed: {operation['error']}"
        )
    return operation
