"""Context: the dependencies of routes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from penstock.server.api.guard import Authenticator
from penstock.server.api.models import ServerConfig
from penstock.server.service.job_views import JobViews
from penstock.server.service.service import JobService

__all__ = ["Config", "Context", "Reader", "Service", "context_of"]


def _do_nothing() -> None:
    """Do nothing: without a manager in this process, there is nothing to wake."""


@dataclass(frozen=True)
class Context:
    """The dependencies of routes.

    Args:
        service: the interface of the job manager.
        door: the authenticator.
        config: the settings with which the server was started.
        wake: wakes the manager, so that it acts at once.
        stopping: set when the server ends, so that event streams end.
        landing: the path to which a browser is redirected after login.

    """

    service: JobService
    door: Authenticator
    config: ServerConfig
    wake: Callable[[], None] = _do_nothing
    stopping: threading.Event = field(default_factory=threading.Event)
    landing: str = "/dashboard/jobs"


def context_of(request: Request) -> Context:
    """Return the context of the app that handles a request."""
    context: Context = request.app.state.context
    return context


def _service(request: Request) -> JobService:
    return context_of(request).service


def _reader(request: Request) -> JobViews:
    return context_of(request).service.reader


def _config(request: Request) -> ServerConfig:
    return context_of(request).config


Service = Annotated[JobService, Depends(_service)]
Reader = Annotated[JobViews, Depends(_reader)]
Config = Annotated[ServerConfig, Depends(_config)]
