"""Connection limits: idle connections keep nobody out, and probes get an answer however busy the server is."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEALTH", "Bounded", "CrowdLimits", "protocol_for"]

HEALTH: Final = "/v1/health"
"""Where probes ask for the server's health."""

_turns: Final = itertools.count()


@dataclass(frozen=True)
class CrowdLimits:
    """How many connections there may be at once, and how long a request may take to arrive.

    Args:
        head_s: how long a connection may be silent, or take for the head of a request.
        body_s: how long the body of a request may take after that.
        waiting: how many connections may have no complete request; one more closes the one that has waited longest.
        waiting_of_one: the same for one address. Behind a proxy, and on this machine, all clients share one.
        working: how many requests and sockets are served at once. Others get 503.

    """

    head_s: float = 10.0
    body_s: float = 20.0
    waiting: int = 200
    waiting_of_one: int | None = None
    working: int = 500


def protocol_for(limits: CrowdLimits) -> type[asyncio.Protocol]:
    """A connection protocol with limits."""

    class Patient(_Connection):
        crowd = limits

    return Patient


class _Connection(H11Protocol):
    """A connection that closes when its request takes too long, or when others need its place.

    Between two requests uvicorn's own timeout counts, which is shorter.
    """

    crowd: CrowdLimits = CrowdLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._has_head = False
        self.turn = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has come."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Somebody has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request has arrived."""
        if self._timer is None and self.asks_nothing:
            # A pause is allowed between two requests, but not within one.
            self._wait()
        super().data_received(data)
        if not self.asks_nothing:
            self._stop_waiting()
        elif self._timer is not None and self._reads_body and not self._has_head:
            self._has_head = True
            self._set_timer(self.crowd.body_s)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand over to the protocol of web sockets."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    @property
    def asks_nothing(self) -> bool:
        """Whether no complete request is being answered."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    @property
    def _reads_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _wait(self) -> None:
        self._has_head = False
        self.turn = next(_turns)
        self._set_timer(self.crowd.head_s)

    def _set_timer(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, _Connection) and one.asks_nothing]
        address = self.client[0] if self.client else None
        own = [one for one in waiting if one.client and one.client[0] == address]
        for known, limit in ((own, self.crowd.waiting_of_one), (waiting, self.crowd.waiting)):
            if limit is not None and len(known) > limit:
                min(known, key=lambda one: one.turn).end()
                return

    def end(self) -> None:
        """End it now."""
        self._stop_waiting()
        # It stops counting now, not only when the client has noticed.
        self.connections.discard(self)
        self.transport.abort()


class Bounded:
    """Outermost ASGI middleware: serves only so many requests and sockets at a time, and probes always."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app: Final = app
        self._limit: Final = limit
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 503."""
        if scope["type"] == "lifespan" or scope["path"] == HEALTH:
            await self._app(scope, receive, send)
        elif self._working >= self._limit:
            await _too_many(scope, receive, send)
        else:
            self._working += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._working -= 1


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1013})
        return
    answer = PlainTextResponse(
        "The server is busy. Try again in a few seconds.",
        503,
        {"Retry-After": "5", "Connection": "close", "X-Content-Type-Options": "nosniff"},
    )
    await answer(scope, receive, send)
