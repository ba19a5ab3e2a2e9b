"""Demo job: a built-in definition without dependencies. It starts in an empty home, and is paused without a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import penstock.demo
from penstock.server.lifecycle.statuses import ENDED, WITH_DRIVER, Desired, JobStatus
from penstock.server.runs.definitions import JobDefinition, JobSettings
from penstock.server.service.job_resources import Job, Submission
from penstock.server.service.service import JobService

__all__ = ["DEMO", "demo_definition", "pause_demo", "start_or_resume"]

DEMO: Final = "demo"
"""The id of the definition."""

_WHO: Final = "penstock serve"
_PAUSED_OR_RESUMED: Final = ("asked for: pause", "asked for: resume")
_PAUSE_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.1
_RATE: Final = 200
_FILE: Final = Path(penstock.demo.__file__).with_name("served") / "warm_rooms.py"


def demo_definition() -> JobDefinition:
    """Return the definition. Its input is a clock and its output is discarded, so its disk usage stays constant."""
    settings = JobSettings(
        bindings={"ticks": f"rate:{_RATE}", "heaters": "discard:"},
        batch_interval="500ms",
        parallelism=2,
        master="local[2]",
        state_memory_mb=64,
    )
    return JobDefinition(
        id=DEMO,
        name=DEMO,
        folder=str(_FILE.parent),
        file=str(_FILE),
        entry_point=None,
        settings=settings.model_dump(),
    )


def start_or_resume(service: JobService) -> str | None:
    """Submit the demo job if the home has no jobs, or resume it if it was paused when its server ended.

    Returns its id if it is submitted or resumed, else None.
    """
    jobs = service.list_jobs(tuple(JobStatus), 1)
    if not jobs:
        # Because of the key, two servers that start at once submit only one job.
        return service.submit(Submission(definition=DEMO), _WHO, key=f"first-{DEMO}").job
    for job in _demos(service, Desired.PAUSED):
        asked = [event.who for event in service.events(job.id) if event.what in _PAUSED_OR_RESUMED]
        if asked and asked[-1] == _WHO:
            return service.resume(job.id, _WHO).job
    return None


def pause_demo(service: JobService, wake: Callable[[], None], timeout_s: float = _PAUSE_TIMEOUT_S) -> None:
    """Pause the demo job if a server submitted it by itself, and wait for it. The manager must still be running."""
    pausing = [service.pause(job.id, _WHO).job for job in _demos(service, Desired.RUNNING)]
    deadline_s = time.monotonic() + timeout_s
    while pausing and time.monotonic() < deadline_s:
        wake()
        time.sleep(_POLL_S)
        pausing = [job_id for job_id in pausing if service.get(job_id).status in WITH_DRIVER]


def _demos(service: JobService, desired: Desired) -> list[Job]:
    """Return the unfinished demo jobs with a desired status that a server submitted by itself."""
    live = [status for status in JobStatus if status not in ENDED]
    return [
        job
        for job in service.list_jobs(live)
        if (job.definition, job.created_by, job.desired) == (DEMO, _WHO, desired)
    ]
