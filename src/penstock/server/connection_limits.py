"""Connection limits: idle connections cannot block other clients, and health probes always get an answer."""

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
"""The path of health probes."""

_turns: Final = itertools.count()


@dataclass(frozen=True)
class CrowdLimits:
    """The limits on concurrent connections, and on the time that a request may take to arrive.

    Args:
        head_s: how long a connection may be silent, or take to send the head of a request.
        body_s: how long the body of a request may take after that.
        waiting: the number of connections without a complete request; one more closes the one that has waited longest.
        waiting_of_one: the same limit for one address, or None: behind a proxy, and on this machine, all clients share
            one address.
        working: the number of requests and WebSockets that are served at once. Others get 503.

    """

    head_s: float = 10.0
    body_s: float = 20.0
    waiting: int = 200
    waiting_of_one: int | None = None
    working: int = 500


def protocol_for(limits: CrowdLimits) -> type[asyncio.Protocol]:
    """Return a connection protocol with these limits."""

    class Patient(_Connection):
        crowd = limits

    return Patient


class _Connection(H11Protocol):
    """A connection that closes if its request takes too long to arrive, or if others need its place.

    Between two requests, uvicorn's own timeout applies, which is shorter.
    """

    crowd: CrowdLimits = CrowdLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._has_head = False
        self.turn = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn declares the narrower type
        """Start to wait for a request on a new connection."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting on a closed connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process a part of a request, and set the time-out for the next part."""
        if self._timer is None and self.awaits_request:
            # A client may pause between two requests, but not within one.
            self._wait()
        super().data_received(data)
        if not self.awaits_request:
            self._stop_waiting()
        elif self._timer is not None and self._reads_body and not self._has_head:
            self._has_head = True
            self._set_timer(self.crowd.body_s)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand over to the WebSocket protocol."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    @property
    def awaits_request(self) -> bool:
        """Whether the connection has no complete request in progress."""
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
        waiting = [one for one in self.connections if isinstance(one, _Connection) and one.awaits_request]
        address = self.client[0] if self.client else None
        own = [one for one in waiting if one.client and one.client[0] == address]
        for known, limit in ((own, self.crowd.waiting_of_one), (waiting, self.crowd.waiting)):
            if limit is not None and len(known) > limit:
                min(known, key=lambda one: one.turn).end()
                return

    def end(self) -> None:
        """Close the connection now."""
        self._stop_waiting()
        # From now on it does not count, even before the client notices.
        self.connections.discard(self)
        self.transport.abort()


class Bounded:
    """Outermost ASGI middleware, which limits concurrent requests and WebSockets, but always serves health probes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app: Final = app
        self._limit: Final = limit
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond with 503."""
        if scope["type"] == "lifespan" or scope["path"] == HEALTH:
            await self._app(scope, receive, send)
        elif self._working >= self._limit:
            await _refuse_busy(scope, receive, send)
        else:
            self._working += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._working -= 1


async def _refuse_busy(scope: Scope, receive: Receive, send: Send) -> None:
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
