"""All pages of the dashboard and their routes, in the order of the navigation and the tabs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from fastapi import Path, Request
from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.api.routes import needs
from penstock.server.dashboard import (
    charts_page,
    checkpoints_page,
    control_page,
    events_page,
    failures_page,
    graph_page,
    jobs_page,
    log_page,
    models_page,
    overview_page,
    runs_page,
    savepoints_page,
    state_page,
)
from penstock.server.dashboard.page_session import JobVisit, Visit
from penstock.server.dashboard.registry import JOB_TABS, PAGES, JobTab, Page
from penstock.server.dashboard.shell import show_job_tab, show_page
from penstock.server.service.job_resources import ID_PATTERN

__all__ = ["MODULES", "install"]

MODULES: Final = (
    jobs_page,
    savepoints_page,
    overview_page,
    graph_page,
    charts_page,
    control_page,
    models_page,
    state_page,
    checkpoints_page,
    failures_page,
    log_page,
    runs_page,
    events_page,
)
"""The modules with pages, in the order of the navigation and the tabs. Each registers its own pages."""


def install() -> None:
    """Create the routes of all registered pages, in the order of the modules."""
    order = [module.__name__ for module in MODULES]
    PAGES.sort(key=lambda page: order.index(page.build.__module__))
    JOB_TABS.sort(key=lambda tab: order.index(tab.build.__module__))
    for page in PAGES:
        _install_page(page)
    for tab in JOB_TABS:
        _install_tab(tab)


def _install_page(page: Page) -> None:
    def show(request: Request) -> None:
        show_page(page, Visit(request))

    _route(page.path, show, page.role)


def _install_tab(tab: JobTab) -> None:
    async def show(request: Request, job_id: str = Path(pattern=ID_PATTERN)) -> None:
        await show_job_tab(tab, JobVisit(request, job_id))

    _route(f"/jobs/{{job_id}}/{tab.name}".rstrip("/"), show, tab.role)


def _route(path: str, show: Callable[..., object], role: Role) -> None:
    # The framework would resolve the names of types in its own module.
    show.__signature__ = inspect.signature(show, eval_str=True)  # type: ignore[attr-defined]  # functions may have one; mypy does not know
    ui.page(path, openapi_extra=needs(role))(show)
