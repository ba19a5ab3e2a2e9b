"""Page sessions: an open page, its user, its polls, and its actions."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nicegui import Client, ui
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Scope

from penstock.errors import PenstockError
from penstock.server.api.access import Principal, Role
from penstock.server.api.context import Context
from penstock.server.api.guard import headers_of
from penstock.server.service.job_resources import Operation
from penstock.server.service.service import JobService

__all__ = ["POLL_S", "JobVisit", "Readings", "SessionOverError", "Visit", "end_page", "principal_of"]

POLL_S: Final = 1.0
"""How often an open page polls, in seconds."""

_FRESH_S: Final = 0.8
_FORGOTTEN_S: Final = 30.0
_MAX_WAIT_S: Final = 120.0

_T = TypeVar("_T")
_ended: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


class SessionOverError(PenstockError):
    """The session of an open page has ended."""


class RoleTooLowError(PenstockError):
    """The role of the user does not allow an action."""


def principal_of(scope: Scope) -> Principal | None:
    """Return the current user of a request or socket; None if the session has ended."""
    context: Context = scope["state"]["context"]
    return context.door.authenticate(headers_of(scope))


def end_page(client: Client) -> None:
    """Replace a page whose session has ended with the login page."""
    # Sent only once, because a second time would make the browser restart the navigation.
    if client not in _ended:
        _ended.add(client)
        client.run_javascript("window.location.replace('/login')")


@dataclass
class _Reading:
    at_s: float = float("-inf")
    used_s: float = 0.0
    value: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Readings:
    """The reads of open pages. Pages that show the same content share one read. Without a page, nothing is read."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s: Final = clock_s
        self._known: dict[Hashable, _Reading] = {}

    async def get(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """Return the result of `read`, called in a thread, or a recent result with the same key."""
        self._forget()
        reading = self._known.setdefault(key, _Reading())
        reading.used_s = self._clock_s()
        async with reading.lock:
            if self._clock_s() - reading.at_s > _FRESH_S:
                reading.value = await run_in_threadpool(read)
                reading.at_s = self._clock_s()
            value: _T = reading.value
            return value

    def keep(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the object that `make` created for a key. It is kept as long as pages ask for it."""
        reading = self._known.get(key)
        if reading is None:
            reading = self._known[key] = _Reading(value=make())
        reading.used_s = self._clock_s()
        value: _T = reading.value
        return value

    def _forget(self) -> None:
        now_s = self._clock_s()
        for key in [
            k for k, r in self._known.items() if now_s - r.used_s > _FORGOTTEN_S and not r.lock.locked()
        ]:
            del self._known[key]


class Visit:
    """An open page.

    Args:
        request: the request that opened it, which the guard admitted.

    """

    def __init__(self, request: Request) -> None:
        self.request: Final = request
        self.context: Final[Context] = request.scope["state"]["context"]
        self.readings: Final[Readings] = request.scope["state"]["readings"]
        self._problem: ui.label | None = None

    @property
    def service(self) -> JobService:
        """The service of the job manager."""
        return self.context.service

    @property
    def principal(self) -> Principal:
        """The user of the page. Raises SessionOverError when the session has ended."""
        found = principal_of(self.request.scope)
        if found is None:
            raise SessionOverError("The session has ended. Open the URL that penstock serve printed.")
        return found

    def may(self, role: Role) -> bool:
        """Return whether the user of the page has a role."""
        return self.principal.role.covers(role)

    def show_problems_in(self, label: ui.label) -> None:
        """Set the label that shows an error when the data of the page cannot be read."""
        self._problem = label

    def poll(
        self,
        read: Callable[[], _T],
        show: Callable[[_T], object],
        *,
        key: Hashable = None,
        every_s: float = POLL_S,
    ) -> ui.timer:
        """Read and show data, now and repeatedly while the page is open.

        `read` is called in a thread. All open pages with the same `key` share its result. If it raises a PenstockError,
        the error is shown and the previous content stays.
        """

        async def refresh() -> None:
            if principal_of(self.request.scope) is None:
                end_page(ui.context.client)
                return
            try:
                found = await (run_in_threadpool(read) if key is None else self.readings.get(key, read))
            except PenstockError as e:
                self._show_problem(str(e))
                return
            self._show_problem("")
            show(found)

        return ui.timer(every_s, refresh)

    def _show_problem(self, problem: str) -> None:
        if self._problem is not None and self._problem.text != problem:
            self._problem.set_text(problem)
            self._problem.set_visibility(bool(problem))

    async def act(self, role: Role, do: Callable[[str], _T]) -> _T | None:
        """Run `do` with the name of the page's user, in a thread, if the user still has the role.

        If it raises a PenstockError, the error is shown and the result is None.
        """
        client = ui.context.client
        try:
            principal = self.principal
            if not principal.role.covers(role):
                raise RoleTooLowError(
                    f"This needs the role {role}, and {principal.name} has the role {principal.role}."
                )
            done = await run_in_threadpool(do, principal.name)
        except SessionOverError:
            end_page(client)
            return None
        except PenstockError as e:
            ui.notify(str(e), type="negative", multi_line=True, timeout=10_000, close_button="Close")
            return None
        self.context.wake()
        return done

    async def follow(self, operation: Operation, doing: str) -> Operation | None:
        """Show an operation until it ends or takes too long, and return it. Returns None if the page is closed."""
        shown = ui.notification(f"{doing} ...", spinner=True, timeout=None, close_button="Hide")
        ends_s = time.monotonic() + _MAX_WAIT_S
        client = ui.context.client
        while operation.state in ("PENDING", "RUNNING") and time.monotonic() < ends_s:
            await asyncio.sleep(0.3)
            if client.is_deleted:
                return None
            with contextlib.suppress(PenstockError):  # a busy store will answer the next time
                operation = await run_in_threadpool(self.service.operation, operation.id)
        shown.spinner = False
        shown.timeout = 10
        if operation.state == "DONE":
            shown.type, shown.message = "positive", f"{doing}: done."
        elif operation.state == "FAILED":
            shown.type, shown.message = "negative", f"{doing} failed: {operation.error}"
        else:
            shown.type, shown.message = "warning", f"{doing} continues."
        return operation

    async def carry_out(self, role: Role, doing: str, ask: Callable[[str], Operation]) -> Operation | None:
        """Request an operation, as `act` does, and follow it."""
        operation = await self.act(role, ask)
        return None if operation is None else await self.follow(operation, doing)


class JobVisit(Visit):
    """An open page on a job."""

    def __init__(self, request: Request, job_id: str) -> None:
        super().__init__(request)
        self.job_id: Final = job_id
