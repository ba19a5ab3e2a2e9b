"""The routes of what happens: operations, events, and streams of both for as long as somebody listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.server.api.access import Role
from penstock.server.api.context import Context, Service, context_of
from penstock.server.api.models import ID_PATTERN, Event, Job, Operation, Page
from penstock.server.api.routing import JobId, Limit, needs, new_router

__all__ = ["router"]

_POLL_S: Final = 0.5
_HEARTBEAT_S: Final = 10.0
_MOST_STREAMS: Final = 50
_MOST_EVENTS: Final = 500
_LARGEST_ID: Final = (1 << 63) - 1
_EVENT_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "Server-sent events.",
    }
}

router = new_router("events")

EventId = Annotated[int, Query(ge=0, le=_LARGEST_ID, description="The id of an event: only those behind it.")]
Seconds = Annotated[int, Query(ge=1, le=3600, description="For how long; a browser asks again by itself.")]
OfJob = Annotated[str | None, Query(pattern=ID_PATTERN, description="Only what happened to this job.")]


@router.get("/operations/{operation_id}", summary="Get an operation", openapi_extra=needs(Role.VIEWER))
def get_operation(
    operation_id: Annotated[str, Path(pattern=ID_PATTERN, description="The id of an operation.")],
    service: Service,
) -> Operation:
    """What was asked for, and what came of it."""
    return Operation.model_validate(service.operation(operation_id))


@router.get("/events", summary="List events", openapi_extra=needs(Role.VIEWER))
def list_events(service: Service, job: OfJob = None, limit: Limit = 100, after: EventId = 0) -> Page[Event]:
    """Who did what, when: the audit log, oldest first. `next` is there even at its end, to go on from later."""
    found = service.events(job, after, limit)
    return Page(
        items=[Event.model_validate(event) for event in found], next=str(found[-1].id if found else after)
    )


@router.get(
    "/events/stream",
    summary="Follow events",
    response_class=StreamingResponse,
    responses=_EVENT_STREAM,
    openapi_extra=needs(Role.VIEWER),
)
async def stream_events(
    request: Request,
    service: Service,
    job: OfJob = None,
    after: EventId = 0,
    seconds: Seconds = 3600,
    last_event_id: Annotated[int | None, Header(ge=0, le=_LARGEST_ID)] = None,
) -> StreamingResponse:
    """Events as they happen, as server-sent events: `id`, `event: event` and `data`, a JSON object as in the list."""
    place = after if last_event_id is None else last_event_id

    def news() -> list[str]:
        nonlocal place
        told = []
        for event in service.events(job, place, _MOST_EVENTS):
            place = event.id
            told.append(_message("event", Event.model_validate(event).model_dump_json(), event.id))
        return told

    # A job that there is not is told as a problem, while there is no response yet.
    first = await run_in_threadpool(news)
    return _stream(request, news, seconds, first)


@router.get(
    "/jobs/{job_id}/stream",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses=_EVENT_STREAM,
    openapi_extra=needs(Role.VIEWER),
)
async def stream_job(
    request: Request, job_id: JobId, service: Service, seconds: Seconds = 3600
) -> StreamingResponse:
    """A job with its progress, whenever either changes, as server-sent events: `event: job` and `data`."""
    shown = ""

    def news() -> list[str]:
        nonlocal shown
        now = Job.model_validate(service.get(job_id)).model_dump_json()
        if now == shown:
            return []
        shown = now
        return [_message("job", now)]

    first = await run_in_threadpool(news)
    return _stream(request, news, seconds, first)


def _stream(
    request: Request, news: Callable[[], list[str]], seconds: int, first: list[str]
) -> StreamingResponse:
    context = context_of(request)
    if request.app.state.streams >= _MOST_STREAMS:
        raise HTTPException(
            503, f"{_MOST_STREAMS} streams are open, which is the most there may be.", {"Retry-After": "5"}
        )
    return StreamingResponse(_told(request, context, news, seconds, first), media_type="text/event-stream")


async def _told(
    request: Request, context: Context, news: Callable[[], list[str]], seconds: int, first: list[str]
) -> AsyncIterator[str]:
    """Messages until the time is over, or the server ends; a client that is gone ends it with what it is told next."""
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


def _message(kind: str, data: str, number: int | None = None) -> str:
    """One message. JSON has no line breaks of its own."""
    place = "" if number is None else f"id: {number}\n"
    return f"{place}event: {kind}\ndata: {data}\n\n"
