"""The demo job: a definition that needs nothing else, and its first submission in an empty home."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import penstock.demo
from penstock.server.catalog import Definition, JobSettings
from penstock.server.service import JobService, Submission
from penstock.server.statuses import JobStatus

__all__ = ["DEMO", "demo_definition", "submit_once"]

DEMO: Final = "demo"
"""The id of the definition."""

_WHO: Final = "penstock serve"
_RATE: Final = 200
_FILE: Final = Path(penstock.demo.__file__).with_name("served") / "warm_rooms.py"


def demo_definition() -> Definition:
    """A job whose input is the clock and whose output is counted, so that it uses no more disk the longer it runs."""
    settings = JobSettings(
        bindings={"ticks": f"rate:{_RATE}", "heaters": "discard:"},
        batch_interval="500ms",
        parallelism=2,
        master="local[2]",
        state_memory_mb=64,
    )
    return Definition(
        id=DEMO,
        name=DEMO,
        folder=str(_FILE.parent),
        file=str(_FILE),
        entry_point=None,
        settings=settings.model_dump(),
    )


def submit_once(service: JobService) -> str | None:
    """Submit the demo unless there has been a job; gives its id if it was."""
    if service.list_jobs(tuple(JobStatus), 1):
        return None
    # With the key two servers that start at once submit one job.
    return service.submit(Submission(definition=DEMO), _WHO, key=f"first-{DEMO}").job
