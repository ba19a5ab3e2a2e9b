"""The page with the output of the runs of a job."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import clock_time
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.job_resources import Run

__all__ = ["log"]

_MAX_BYTES: Final = 65536


@job_tab("log", "Log", icon="notes", role=Role.OPERATOR)
def log(visit: JobVisit) -> None:
    """Build the page with the output of a run."""
    _LogPage(visit)


class _LogPage:
    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        self._shown: str | None = None
        self._seen: int | None = None
        with (
            components.card("Output", about=f"the last {_MAX_BYTES >> 10} KiB"),
            ui.element("div").classes("p-body"),
        ):
            with ui.element("div").classes("p-toolbar"):
                self._run = ui.select({}, label="Run", on_change=self._update_cli)
                self._run.props("outlined dense").classes("p-filter")
                self._follow = ui.switch("Follow", value=True, on_change=self._update_cli)
            with ui.scroll_area().classes("p-log").props('tabindex=0 aria-label="Log"') as self._area:
                self._text = components.text("", "pre").classes("p-log-text")
            self._cli = components.cli_equivalent("")
        self._update_cli()
        visit.poll(lambda: visit.service.runs(visit.job_id), self._show_runs, key=("runs", visit.job_id))
        visit.poll(self._read, self._show)

    def _update_cli(self) -> None:
        run = self._run.value or None
        self._cli.set_text(
            cli_equivalents.follow_log(self._visit.job_id, run, follow=bool(self._follow.value))
        )

    def _show_runs(self, found: list[Run]) -> None:
        options = {0: "Newest run"}
        options |= {run.run: f"Run {run.run}, begun {clock_time(run.created_ms)}" for run in found}
        if options != self._run.options:
            self._run.set_options(options, value=self._run.value or 0)

    def _read(self) -> str | None:
        """Return the text to show; None if it has not changed."""
        run = self._run.value or None
        if self._shown is not None and not self._follow.value and run == self._seen:
            return None
        self._seen = run
        found = self._visit.service.log(self._visit.job_id, run, _MAX_BYTES)
        if found.run == 0:
            return "The job has not started yet."
        return found.text or "No output yet."

    def _show(self, text: str | None) -> None:
        if text is None or text == self._shown:
            return
        self._shown = text
        self._text.set_text(text)
        if self._follow.value:
            self._area.scroll_to(percent=1.0)
