"""Connection limits: who asks nothing keeps nobody out, and whether the server lives is told in any crowd."""

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
"""Where probes ask whether the server lives."""

_turns: Final = itertools.count()


@dataclass(frozen=True)
class CrowdLimits:
    """How many may come at once, and how long they may take to ask.

    Args:
        head_s: for how long a connection may be silent, or within the head of a request.
        body_s: how long the body of a request may take from then on.
        waiting: how many connections may have no complete request; for another, the one that has waited longest goes.
        waiting_of_one: the same for one address. Through a proxy, and on this machine, all come from one.
        working: how many requests and sockets are worked on at once. Others are told to come again.

    """

    head_s: float = 10.0
    body_s: float = 20.0
    waiting: int = 200
    waiting_of_one: int | None = None
    working: int = 500


def protocol_for(limits: CrowdLimits) -> type[asyncio.Protocol]:
    """The protocol of connections within limits."""

    class Patient(_Connection):
        crowd = limits

    return Patient


class _Connection(H11Protocol):
    """A connection that ends when its request takes too long, or when others need its place.

    Between two requests uvicorn's own time counts, which is shorter.
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
        """Something of a request has come."""
        if self._timer is None and self.asks_nothing:
            # It may have become quiet between two requests, but not within one.
            self._wait()
        super().data_received(data)
        if not self.asks_nothing:
            self._stop_waiting()
        elif self._timer is not None and self._reads_body and not self._has_head:
            self._has_head = True
            self._set_timer(self.crowd.body_s)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """It becomes a socket, which has a protocol of its own."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    @property
    def asks_nothing(self) -> bool:
        """Whether there is no complete request that is being answered."""
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
        for known, most in ((own, self.crowd.waiting_of_one), (waiting, self.crowd.waiting)):
            if most is not None and len(known) > most:
                min(known, key=lambda one: one.turn).end()
                return

    def end(self) -> None:
        """End it now."""
        self._stop_waiting()
        # It counts no more at once, and not only when the other side has taken note.
        self.connections.discard(self)
        self.transport.abort()


class Bounded:
    """ASGI middleware in front of all: as many requests and sockets as can be worked on, and always those of probes."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app: Final = app
        self._most: Final = most
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or tell it to come again."""
        if scope["type"] == "lifespan" or scope["path"] == HEALTH:
            await self._app(scope, receive, send)
        elif self._working >= self._most:
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
        "The server is busy. Ask again in some seconds.",
        503,
        {"Retry-After": "5", "Connection": "close", "X-Content-Type-Options": "nosniff"},
    )
    await answer(scope, receive, send)
