"""CLI equivalents: the terminal commands that do the same as buttons and pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.control.commands import AT_ONCE, Apply

__all__ = [
    "SentControl",
    "cancel_job",
    "delete_savepoint",
    "dump_state",
    "follow_log",
    "list_jobs",
    "list_models",
    "list_savepoints",
    "list_states",
    "pause_job",
    "rescale_job",
    "resume_job",
    "send_control",
    "show_commands",
    "show_events",
    "show_job",
    "show_key",
    "show_metrics",
    "stop_job",
    "submit_job",
    "take_savepoint",
]


@dataclass(frozen=True)
class SentControl:
    """The fields of a command to send. The payload is JSON."""

    kind: str
    target: str
    payload: str | None = None
    version: int | None = None
    expires_in_s: int | None = None
    apply: Apply = AT_ONCE


def list_jobs() -> str:
    """List the jobs."""
    return _command("list", all=True)


def list_models(job_id: str) -> str:
    """List the models of a job."""
    return _command("models", "list", job_id)


def show_job(job_id: str) -> str:
    """Show a job."""
    return _command("info", job_id)


def show_metrics(job_id: str) -> str:
    """Show the metrics of a job, refreshed every second."""
    return _command("metrics", job_id, watch=True)


def submit_job(definition: str, changes: Mapping[str, Any]) -> str:
    """Submit a job from a definition, with changed settings by name."""
    return _command("submit", definition, **changes)


def pause_job(job_id: str) -> str:
    """Pause a job."""
    return _command("pause", job_id)


def resume_job(job_id: str) -> str:
    """Resume a job."""
    return _command("resume", job_id)


def stop_job(job_id: str, *, savepoint: bool, drain: bool) -> str:
    """Stop a job."""
    return _command("stop", job_id, savepoint=savepoint, drain=drain)


def cancel_job(job_id: str) -> str:
    """Cancel a job."""
    return _command("cancel", job_id)


def rescale_job(job_id: str, parallelism: int) -> str:
    """Rescale a job."""
    return _command("rescale", job_id, parallelism=parallelism)


def take_savepoint(job_id: str) -> str:
    """Take a savepoint of a job."""
    return _command("savepoint", job_id)


def list_savepoints(job: str) -> str:
    """List the savepoints of a job."""
    return _command("savepoint", job, list=True)


def delete_savepoint(job: str, savepoint_id: str) -> str:
    """Delete a savepoint."""
    return _command("savepoint", job, dispose=savepoint_id)


def list_states(job_id: str) -> str:
    """List the steps of a job with their states."""
    return _command("state", "ls", job_id)


def show_key(job_id: str, step: str, key: str) -> str:
    """Show the states of a key in a step."""
    return _command("state", "get", job_id, step=step, key=key)


def query_state(job_id: str, sql: str) -> str:
    """Query the state of a job."""
    return _command("query", job_id, sql)


def dump_state(job_id: str, form: str) -> str:
    """Dump the state of a job."""
    return _command("state", "dump", job_id, to="FOLDER", format=form)


def follow_log(job_id: str, run: int | None, *, follow: bool) -> str:
    """Show the output of a run of a job."""
    return _command("logs", job_id, run=run, follow=follow)


def show_events(job_id: str | None) -> str:
    """Show the events of a job, or of all jobs."""
    return _command("events", *([] if job_id is None else [job_id]))


def show_commands(job_id: str) -> str:
    """List the commands that a job has read."""
    return _command("control", "history", job_id)


def send_control(job_id: str, sent: SentControl) -> str:
    """Send a command to a job."""
    options: dict[str, Any] = {"kind": sent.kind, "target": sent.target, "json": sent.payload}
    options |= {"version": sent.version, "expires_in": sent.expires_in_s}
    return _command("control", "send", job_id, **options, apply=None if sent.apply == AT_ONCE else sent.apply)


def _command(*words: str, **options: str | int | None) -> str:
    """Format a command. Options that are None or False are left out; True is an option without a value."""
    given = list(words)
    for name, value in options.items():
        if value is not None and value is not False:
            given += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(["penstock", *given])
