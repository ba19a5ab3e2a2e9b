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
    "list_jobs",
    "pause_job",
    "rescale_job",
    "resume_job",
    "send_control",
    "show_commands",
    "show_events",
    "show_job",
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
    return _format_command("list", "--all")


def show_job(job_id: str) -> str:
    """Show a job."""
    return _format_command("info", job_id)


def show_metrics(job_id: str) -> str:
    """Show the metrics of a job, refreshed every second."""
    return _format_command("metrics", job_id, "--watch")


def submit_job(definition: str, changes: Mapping[str, Any]) -> str:
    """Submit a job from a definition, with changed settings by name."""
    return _format_command("submit", definition, *_options(changes))


def pause_job(job_id: str) -> str:
    """Pause a job."""
    return _format_command("pause", job_id)


def resume_job(job_id: str) -> str:
    """Resume a job."""
    return _format_command("resume", job_id)


def stop_job(job_id: str, *, savepoint: bool, drain: bool) -> str:
    """Stop a job."""
    return _format_command(
        "stop", job_id, *(["--savepoint"] if savepoint else []), *(["--drain"] if drain else [])
    )


def cancel_job(job_id: str) -> str:
    """Cancel a job."""
    return _format_command("cancel", job_id)


def rescale_job(job_id: str, parallelism: int) -> str:
    """Rescale a job."""
    return _format_command("rescale", job_id, "--parallelism", str(parallelism))


def take_savepoint(job_id: str) -> str:
    """Take a savepoint of a job."""
    return _format_command("savepoint", job_id)


def show_events(job_id: str | None) -> str:
    """Show the events of a job, or of all jobs."""
    return _format_command("events", *([] if job_id is None else [job_id]))


def show_commands(job_id: str) -> str:
    """List the commands that a job has read."""
    return _format_command("control", "history", job_id)


def send_control(job_id: str, sent: SentControl) -> str:
    """Send a command to a job."""
    options = ["--kind", sent.kind, "--target", sent.target]
    if sent.payload is not None:
        options += ["--json", sent.payload]
    if sent.version is not None:
        options += ["--version", str(sent.version)]
    if sent.expires_in_s is not None:
        options += ["--expires-in", str(sent.expires_in_s)]
    if sent.apply != AT_ONCE:
        options += ["--apply", sent.apply]
    return _format_command("control", "send", job_id, *options)


def _options(changes: Mapping[str, Any]) -> list[str]:
    return [text for name, value in changes.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def _format_command(*words: str) -> str:
    return shlex.join(["penstock", *words])
