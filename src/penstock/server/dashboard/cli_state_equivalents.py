"""CLI equivalents of the pages on state, savepoints and logs."""

from __future__ import annotations

import shlex

__all__ = [
    "delete_dump",
    "delete_savepoint",
    "dump_state",
    "follow_log",
    "list_savepoints",
    "list_states",
    "show_key",
]


def list_states(job_id: str) -> str:
    """List the steps of a job with their states."""
    return shlex.join(["penstock", "state", "ls", job_id])


def show_key(job_id: str, step: str, key: str) -> str:
    """Show the states of a key in a step."""
    return shlex.join(["penstock", "state", "get", job_id, "--step", step, "--key", key])


def dump_state(job_id: str, form: str) -> str:
    """Dump the state of a job."""
    return shlex.join(["penstock", "state", "dump", job_id, "--to", "FOLDER", "--format", form])


def list_savepoints(job: str) -> str:
    """List the savepoints of a job."""
    return shlex.join(["penstock", "savepoint", job, "--list"])


def delete_savepoint(job: str, savepoint_id: str) -> str:
    """Delete a savepoint."""
    return shlex.join(["penstock", "savepoint", job, "--dispose", savepoint_id])


def delete_dump(url: str, dump_id: str) -> str:
    """Delete a dump. penstock has no command for this, so it is a call of the REST API."""
    return f'curl -X DELETE -H "Authorization: Bearer $TOKEN" {shlex.quote(f"{url}/v1/dumps/{dump_id}")}'


def follow_log(job_id: str, run: int | None, *, follow: bool) -> str:
    """Show the output of a run of a job."""
    words = [
        "penstock",
        "logs",
        job_id,
        *(["--run", str(run)] if run else []),
        *(["--follow"] if follow else []),
    ]
    return shlex.join(words)
