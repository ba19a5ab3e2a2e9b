"""The shell around the content of each page: the bar with the navigation, the head of a job, its tabs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nicegui import ui
from starlette.concurrency import run_in_threadpool

from penstock.base.version import __version__
from penstock.errors import PenstockError
from penstock.server.api.guard import DASHBOARD
from penstock.server.dashboard import job_head
from penstock.server.dashboard.page_session import JobVisit, Visit
from penstock.server.dashboard.registry import JOB_TABS, PAGES, JobTab, Page

__all__ = ["show_job_tab", "show_page"]


def show_page(page: Page, visit: Visit) -> None:
    """Show a page of the navigation."""
    ui.page_title(f"{page.title} - penstock")
    with _frame(visit, page.path):
        page.build(visit)


async def show_job_tab(tab: JobTab, visit: JobVisit) -> None:
    """Show a page on a job, or a message if the job is unknown."""
    try:
        job = await run_in_threadpool(visit.service.get, visit.job_id)
    except PenstockError as e:
        ui.page_title("No such job - penstock")
        with _frame(visit, ""):
            ui.label(str(e)).classes("p-problem").props("role=alert")
        return
    ui.page_title(f"{job.name}: {tab.title} - penstock")
    with _frame(visit, ""):
        job_head.show(visit, job)
        with ui.element("nav").classes("p-tabs").props('aria-label="Pages on this job"'):
            for one in JOB_TABS:
                if visit.may(one.role):
                    path = f"{DASHBOARD}/jobs/{visit.job_id}" + (f"/{one.name}" if one.name else "")
                    _link(one.title, one.icon, path, here=one is tab)
        tab.build(visit)


@contextlib.contextmanager
def _frame(visit: Visit, here: str) -> Iterator[None]:
    ui.add_head_html(
        f'<link rel="stylesheet" href="{DASHBOARD}/assets/dashboard.css?{__version__}">'
        f'<script defer src="{DASHBOARD}/assets/dashboard.js?{__version__}"></script>'
    )
    _link("Skip to the content", "", "#content").classes("p-skip")
    with ui.element("header").classes("p-bar"):
        with (
            ui.element("a")
            .classes("p-brand")
            .props(f'href="{DASHBOARD}/jobs" aria-label="penstock, all jobs"')
        ):
            ui.element("img").props(f'src="{DASHBOARD}/assets/mark.svg" width=26 height=26 alt=""')
            ui.label("penstock")
        with ui.element("nav").classes("p-nav").props('aria-label="Pages"'):
            for page in PAGES:
                if visit.may(page.role):
                    _link(page.title, page.icon, f"{DASHBOARD}{page.path}", here=page.path == here)
        ui.element("div").classes("p-space")
        principal = visit.principal
        ui.label(f"{principal.name} · {principal.role}").classes("p-person")
        dark = ui.button(icon="contrast", color=None).props(
            'flat round dense aria-label="Light or dark" title="Light or dark"'
        )
        dark.on("click", js_handler="() => window.penstock.toggle()")
        leave = ui.button(icon="logout", color=None).props(
            'flat round dense aria-label="Sign out" title="Sign out"'
        )
        leave.on("click", js_handler="() => window.penstock.leave()")
    with ui.element("main").classes("p-main").props("id=content tabindex=-1"):
        problem = ui.label("").classes("p-problem").props("role=alert")
        problem.set_visibility(False)
        visit.show_problems_in(problem)
        yield


def _link(title: str, icon: str, path: str, *, here: bool = False) -> ui.element:
    with ui.element("a").classes("p-link").props(f'href="{path}"') as made:
        if icon:
            ui.icon(icon).props("aria-hidden=true")
        ui.label(title)
    if here:
        made.classes("p-here").props("aria-current=page")
    return made
