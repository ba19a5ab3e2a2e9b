"""The page with the live charts of a job: throughput, time, lag, event time and state."""

from __future__ import annotations

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.live_charts import WINDOWS, show_charts
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab

__all__ = ["charts_page"]


@job_tab("charts", "Charts", icon="show_chart", role=Role.VIEWER)
def charts_page(visit: JobVisit) -> None:
    """Build the page with the charts of a job."""
    with ui.element("div").classes("p-toolbar"):
        window = (
            ui.toggle(WINDOWS, value=min(WINDOWS))
            .props('no-caps unelevated aria-label="Time window"')
            .classes("p-toggle")
        )
        ui.element("div").classes("p-space")
        ui.label("Times are in UTC").classes("p-muted p-small")
    show_charts(visit, lambda: float(window.value))
    components.cli_equivalent(cli_equivalents.show_metrics(visit.job_id))
