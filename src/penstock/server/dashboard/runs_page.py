"""The page with the runs of a job, and how they ended."""

from __future__ import annotations

import time
from typing import Any

from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import clock_time, duration
from penstock.server.dashboard.health import Level
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.job_resources import Run

__all__ = ["run_row", "runs"]

_GOOD_ENDS = frozenset({"finished", "stopped", "paused"})
_ICONS = {Level.GOOD: "check_circle", Level.BUSY: "play_circle", Level.BAD: "error"}


@job_tab("runs", "Runs", icon="replay", role=Role.VIEWER)
def runs(visit: JobVisit) -> None:
    """Build the page with the runs of a job."""
    with components.card("", about=""):
        table = components.Table(
            [
                components.Column("run", "Run", number=True),
                components.Column("health", "End", slot=components.HEALTH_SLOT, sort="health"),
                components.Column("begun", "Start (UTC)"),
                components.Column("lasted", "Lasted"),
                components.Column("host", "Host"),
                components.Column("process", "Process", number=True),
                components.Column("why", "Why", slot=components.WRAP_SLOT),
            ],
            key="run",
            nothing="Not started yet",
        )

    def show(found: list[Run]) -> None:
        now_ms = int(time.time() * 1000)
        table.show([run_row(run, now_ms) for run in found])

    visit.poll(lambda: visit.service.runs(visit.job_id), show, key=("runs", visit.job_id))
    components.cli_equivalent(cli_equivalents.show_job(visit.job_id))


def run_row(run: Run, now_ms: int) -> dict[str, Any]:
    """Return a run as a row of the table."""
    if run.ended_ms is None:
        level, word = Level.BUSY, "Running"
    else:
        word = (run.end_kind or "ended").capitalize()
        level = Level.GOOD if (run.end_kind or "").lower() in _GOOD_ENDS else Level.BAD
    return {
        "run": run.run,
        "level": str(level),
        "health": word,
        "icon": _ICONS[level],
        "begun": clock_time(run.created_ms),
        "lasted": duration((now_ms if run.ended_ms is None else run.ended_ms) - run.created_ms),
        "host": run.host,
        "process": run.pid or "",
        "why": run.why or "",
    }
