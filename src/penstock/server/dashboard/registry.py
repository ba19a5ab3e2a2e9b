"""The registry of pages. Each page declares its path, its title and its role, as REST routes do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.server.api.access import Role
from penstock.server.dashboard.page_session import JobVisit, Visit

__all__ = ["JOB_TABS", "PAGES", "JobTab", "Page", "job_tab", "page"]


@dataclass(frozen=True)
class Page:
    """A page in the navigation of the dashboard.

    Args:
        path: its path below that of the dashboard.
        title: its title in the navigation and the window.
        icon: the name of a Material icon.
        role: the role that it requires.
        build: builds its content.

    """

    path: str
    title: str
    icon: str
    role: Role
    build: Callable[[Visit], None]


@dataclass(frozen=True)
class JobTab:
    """A page on one job. `name` is the last part of its path, and empty for the first page."""

    name: str
    title: str
    icon: str
    role: Role
    build: Callable[[JobVisit], None]


PAGES: Final[list[Page]] = []
"""The pages in the navigation, in its order."""

JOB_TABS: Final[list[JobTab]] = []
"""The pages on one job, in the order of their tabs."""


def page(
    path: str, title: str, *, icon: str, role: Role
) -> Callable[[Callable[[Visit], None]], Callable[[Visit], None]]:
    """Register a page for the navigation."""

    def register(build: Callable[[Visit], None]) -> Callable[[Visit], None]:
        PAGES.append(Page(path, title, icon, role, build))
        return build

    return register


def job_tab(
    name: str, title: str, *, icon: str, role: Role
) -> Callable[[Callable[[JobVisit], None]], Callable[[JobVisit], None]]:
    """Register a page on one job for its tabs."""

    def register(build: Callable[[JobVisit], None]) -> Callable[[JobVisit], None]:
        JOB_TABS.append(JobTab(name, title, icon, role, build))
        return build

    return register
