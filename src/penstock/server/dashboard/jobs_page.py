"""The page with all jobs: their health, a filter, and a form to submit another job."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.api.guard import DASHBOARD
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount, duration
from penstock.server.dashboard.forms import equivalent_of, submit_job
from penstock.server.dashboard.health import ATTENTION, Level, health_of, lag_of, throughput_of
from penstock.server.dashboard.page_session import Visit
from penstock.server.dashboard.registry import page
from penstock.server.lifecycle.statuses import ENDED, WITH_DRIVER, JobStatus
from penstock.server.service.job_resources import Job
from penstock.server.service.service import JobService

__all__ = ["job_row", "jobs", "read_jobs"]

_GROUPS: Final = {
    "all": "All",
    "running": "Running",
    "attention": "Needs attention",
    "paused": "Not running",
    "ended": "Ended",
}
_ORDER: Final = ("attention", "running", "paused", "ended")
_NAME_SLOT: Final = f"""
<a class="p-job" :href="'{DASHBOARD}/jobs/' + props.row.id">{{{{ props.row.name }}}}</a>
<div class="p-muted p-small">{{{{ props.row.id }}}}</div>"""


@page("/jobs", "Jobs", icon="dns", role=Role.VIEWER)
def jobs(visit: Visit) -> None:
    """Build the page with all jobs."""
    _JobsPage(visit)


def read_jobs(service: JobService) -> list[Job]:
    """Return all jobs, newest first. Those with a driver have their progress."""
    return [
        service.get(job.id) if job.status in WITH_DRIVER else job for job in service.list_jobs(limit=1000)
    ]


def job_row(job: Job, now_ms: int) -> dict[str, Any]:
    """Return a job as a row of the table."""
    health = health_of(job, now_ms)
    throughput, lag = throughput_of(job), lag_of(job)
    return {
        "id": job.id,
        "name": job.name,
        "level": str(health.level),
        "health": health.word,
        "icon": health.icon,
        "why": health.why,
        "status": str(job.status),
        "since": duration(now_ms - job.since_ms) + " ago",
        "since_ms": job.since_ms,
        "throughput": "" if throughput is None else f"{amount(throughput)}/s",
        "throughput_number": -1 if throughput is None else throughput,
        "lag": "" if lag is None else f"{amount(lag[1])} {lag[0]}",
        "lag_number": -1 if lag is None else lag[1],
        "restarts": job.restarts,
        "definition": job.definition,
        "groups": _groups(job, health.level),
    }


def _groups(job: Job, level: Level) -> list[str]:
    """Return the groups of a job, the most urgent first: a job that is behind needs attention, and is running."""
    if job.status in ENDED:
        group = "ended"
    else:
        group = "paused" if level is Level.IDLE or job.status is JobStatus.RESTARTING else "running"
    return ["attention", group] if level in ATTENTION else [group]


class _JobsPage:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._rows: list[dict[str, Any]] = []
        with ui.element("div").classes("p-head"):
            with ui.element("div").classes("p-head-name"):
                components.heading("Jobs")
            with ui.element("div").classes("p-actions"):
                components.action_button(
                    visit, "Submit a job", "add", Role.OPERATOR, self._submit, primary=True
                )
        with ui.element("div").classes("p-toolbar"):
            self._group = (
                ui.toggle(_GROUPS, value="all", on_change=self._show)
                .props('no-caps unelevated aria-label="Which jobs"')
                .classes("p-toggle")
            )
            ui.element("div").classes("p-space")
            self._filter = (
                ui.input(placeholder="Filter by name, id or definition", on_change=self._show)
                .props('outlined dense clearable debounce=200 aria-label="Filter the jobs"')
                .classes("p-filter")
            )
        with components.card(""):
            self._table = components.Table(
                [
                    components.Column("name", "Job", slot=_NAME_SLOT, sort="name"),
                    components.Column("health", "Health", slot=components.HEALTH_SLOT, sort="health"),
                    components.Column("status", "Status"),
                    components.Column("since", "Since", slot="{{ props.row.since }}", sort="since_ms"),
                    components.Column(
                        "throughput",
                        "Records in",
                        number=True,
                        slot="{{ props.row.throughput }}",
                        sort="throughput_number",
                    ),
                    components.Column(
                        "lag", "Lag", number=True, slot="{{ props.row.lag }}", sort="lag_number"
                    ),
                    components.Column("restarts", "Restarts", number=True),
                    components.Column("definition", "Definition"),
                ],
                key="id",
                nothing="No jobs. Submit one, or start penstock serve with --jobs FOLDER.",
            )
        components.cli_equivalent(cli_equivalents.list_jobs())
        visit.poll(lambda: read_jobs(visit.service), self._update, key="jobs")

    def _update(self, found: list[Job]) -> None:
        now_ms = int(time.time() * 1000)
        rows = [job_row(job, now_ms) for job in found]
        # Jobs that need attention come first, ended jobs last; within a group, the newest comes first.
        self._rows = sorted(rows, key=lambda row: _ORDER.index(row["groups"][0]))
        counts = Counter(group for row in self._rows for group in row["groups"])
        counts["all"] = len(self._rows)
        options = {name: f"{title} {counts[name]}" for name, title in _GROUPS.items()}
        if options != self._group.options:
            self._group.set_options(options)
        self._show()

    def _show(self) -> None:
        wanted = (self._filter.value or "").casefold()
        self._table.show(
            [
                row
                for row in self._rows
                if self._group.value in ("all", *row["groups"])
                and any(wanted in row[name].casefold() for name in ("name", "id", "definition"))
            ]
        )

    async def _submit(self) -> None:
        definitions = await self._visit.act(Role.OPERATOR, lambda _: self._visit.service.definitions())
        if definitions is None:
            return
        found = definitions.items
        with components.form_dialog("Submit a job") as dialog:
            if not found:
                ui.label("The server has no definitions. Start it with --jobs FOLDER.").classes(
                    "p-dialog-text"
                )
            chosen = ui.select(
                [one.id for one in found], label="Definition", value=found[0].id if found else None
            )
            name = ui.input("Name", placeholder="as in the definition")
            tasks = ui.number(
                "Parallelism", min=1, max=32768, precision=0, placeholder="as in the definition"
            )
            for one in (chosen, name, tasks):
                one.props("outlined dense")
            for problem in definitions.problems:
                ui.label(f"{problem.path}: {problem.problem}").classes("p-problem")

            def values() -> dict[str, Any]:
                given = {"definition": chosen.value, "name": name.value or None}
                return given | {"parallelism": int(tasks.value) if tasks.value else None}

            components.end_form(dialog, "Submit", (chosen, name, tasks), values, equivalent_of)
        await submit_job(self._visit, await components.answer_of(dialog))
