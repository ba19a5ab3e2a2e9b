"""Event streams: server-sent events, for as long as a client listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.server.api.context import Context, context_of
from penstock.server.api.routes import LARGEST
from penstock.server.resource import Resource

__all__ = ["EVENT_STREAM", "LastEventId", "Seconds", "event_stream", "message", "tail"]

_Item = TypeVar("_Item", bound=Resource)
_Place = TypeVar("_Place", int, int | None)
_POLL_S: Final = 0.5
_HEARTBEAT_S: Final = 10.0
_MAX_STREAMS: Final = 50

EVENT_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "Server-sent events.",
    }
}
"""The OpenAPI description of the response of a streaming route."""

LastEventId = Annotated[
    int | None,
    Header(ge=0, le=LARGEST, description="The last received id, as browsers send it; overrides `after`."),
]

Seconds = Annotated[
    int, Query(ge=1, le=3600, description="Seconds after which the stream ends. Browsers then reconnect.")
]


async def event_stream(request: Request, news: Callable[[], list[str]], seconds: int) -> StreamingResponse:
    """Return a response that polls `news` and sends the messages that it returns.

    The first call precedes the response, so that an unknown job yields 404. Raises HTTPException (503) if too many
    streams are open.
    """
    first = await run_in_threadpool(news)
    context = context_of(request)
    if request.app.state.streams >= _MAX_STREAMS:
        raise HTTPException(
            503,
            f"{_MAX_STREAMS} streams are open, which is the limit. Try again later.",
            {"Retry-After": "5"},
        )
    return StreamingResponse(
        _messages(request, context, news, seconds, first), media_type="text/event-stream"
    )


async def _messages(
    request: Request, context: Context, news: Callable[[], list[str]], seconds: int, first: list[str]
) -> AsyncIterator[str]:
    """Yield messages until the time is up, the server ends, or the client disconnects."""
    request.app.state.streams += 1
    try:
        ends_s = time.monotonic() + seconds
        spoken_s = time.monotonic()
        yield "retry: 2000\n\n" + "".join(first)
        while time.monotonic() < ends_s and not context.stopping.is_set():
            await asyncio.sleep(_POLL_S)
            messages = await run_in_threadpool(news)
            if messages:
                yield "".join(messages)
                spoken_s = time.monotonic()
            elif time.monotonic() - spoken_s >= _HEARTBEAT_S:
                yield ": still here\n\n"
                spoken_s = time.monotonic()
    finally:
        request.app.state.streams -= 1


def tail(
    kind: str, read: Callable[[_Place], Sequence[_Item]], number: Callable[[_Item], int], place: _Place
) -> Callable[[], list[str]]:
    """Return a function that returns what is new since its last call, as messages.

    `read` returns the items after the number of another one, `number` the number of an item.
    """

    def news() -> list[str]:
        nonlocal place
        found = read(place)
        if found:
            place = number(found[-1])
        return [message(kind, item, number(item)) for item in found]

    return news


def message(kind: str, resource: Resource, number: int | None = None) -> str:
    """Format a server-sent event. Its JSON has no line breaks, which would end the data."""
    place = "" if number is None else f"id: {number}\n"
    return f"{place}event: {kind}\ndata: {msgspec.json.encode(resource).decode()}\n\n"
