"""All pages of the dashboard, in the order in which navigation and tabs show them, and their routes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from fastapi import Path, Request
from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.api.models import ID_PATTERN
from penstock.server.api.routing import needs
from penstock.server.dashboard import jobs_page, overview_page
from penstock.server.dashboard.registry import JOB_TABS, PAGES, JobTab, Page
from penstock.server.dashboard.shell import show_job_tab, show_page
from penstock.server.dashboard.visits import JobVisit, Visit

__all__ = ["MODULES", "install"]

MODULES = (jobs_page, overview_page)
"""The modules with pages; each registers its own when it is imported."""


def install() -> None:
    """Give each registered page its route."""
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
    # The framework looks for the names of types in a module of its own.
    show.__signature__ = inspect.signature(show, eval_str=True)  # type: ignore[attr-defined]
    ui.page(path, openapi_extra=needs(role))(show)
