"""The pages with events, the audit log: who did what to a job, or to all jobs, and when."""

from __future__ import annotations

import collections
import json
from typing import Any, Final

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import clock_time
from penstock.server.dashboard.page_session import JobVisit, Visit
from penstock.server.dashboard.registry import job_tab, page
from penstock.server.service.service import Event, JobService

__all__ = ["EventsTail", "event_row", "events", "job_events"]

_MAX_KEPT: Final = 1000
_AT_ONCE: Final = 1000
_DETAIL_SLOT: Final = '<code class="p-detail">{{ props.row.detail }}</code>'


class EventsTail:
    """The newest events of a job or of all jobs. Each is read once."""

    def __init__(self, service: JobService, job_id: str | None) -> None:
        self._service: Final = service
        self._job_id: Final = job_id
        self._kept: Final[collections.deque[Event]] = collections.deque(maxlen=_MAX_KEPT)

    def read(self) -> list[Event]:
        """Return the events, newest first."""
        while True:
            after = self._kept[-1].id if self._kept else 0
            found = self._service.events(self._job_id, after, _AT_ONCE)
            self._kept.extend(found)
            if len(found) < _AT_ONCE:
                return list(reversed(self._kept))


@page("/events", "Events", icon="history", role=Role.VIEWER)
def events(visit: Visit) -> None:
    """Build the page with the events of all jobs."""
    components.heading("Events")
    _events(visit, None)


@job_tab("events", "Events", icon="history", role=Role.VIEWER)
def job_events(visit: JobVisit) -> None:
    """Build the page with the events of a job."""
    _events(visit, visit.job_id)


def event_row(event: Event) -> dict[str, Any]:
    """Return an event as a row of a table."""
    return {
        "id": event.id,
        "at": clock_time(event.at_ms),
        "who": event.who,
        "job": event.job_id or "",
        "what": event.what,
        "detail": json.dumps(event.detail) if event.detail else "",
    }


def _events(visit: Visit, job_id: str | None) -> None:
    wanted = (
        ui.input(placeholder="Filter by who, what or detail", on_change=lambda: show(known))
        .props('outlined dense clearable debounce=200 aria-label="Filter the events"')
        .classes("p-filter")
    )
    columns = [
        components.Column("at", "Time (UTC)"),
        components.Column("who", "Who"),
        *([] if job_id else [components.Column("job", "Job", slot=components.JOB_SLOT, sort="job")]),
        components.Column("what", "What"),
        components.Column("detail", "Detail", slot=_DETAIL_SLOT),
    ]
    with components.card(""):
        table = components.Table(columns, key="id", nothing="No events yet")
    known: list[Event] = []

    def show(found: list[Event]) -> None:
        nonlocal known
        known = found
        text = (wanted.value or "").casefold()
        rows = [event_row(event) for event in found]
        table.show([row for row in rows if any(text in str(value).casefold() for value in row.values())])

    visit.poll(
        lambda: visit.readings.keep(("events", job_id), lambda: EventsTail(visit.service, job_id)).read(),
        show,
        key=("events read", job_id),
    )
    components.cli_equivalent(cli_equivalents.show_events(job_id))
