"""Routes for operations and events, and streams of events and jobs."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Request
from fastapi.responses import StreamingResponse

from penstock.server.api.access import Role
from penstock.server.api.context import Service
from penstock.server.api.event_streams import EVENT_STREAM, LastEventId, Seconds, event_stream, message, tail
from penstock.server.api.models import Page
from penstock.server.api.routes import LARGEST, JobId, Limit, needs, new_router
from penstock.server.service.job_resources import ID_PATTERN, Job, Operation
from penstock.server.service.service import Event

__all__ = ["router"]

_MAX_EVENTS: Final = 500

router = new_router("events")

EventId = Annotated[
    int, Query(ge=0, le=LARGEST, description="Return only events after the event with this id.")
]
OfJob = Annotated[str | None, Query(pattern=ID_PATTERN, description="Return only events of this job.")]


@router.get("/operations/{operation_id}", summary="Get an operation", openapi_extra=needs(Role.VIEWER))
def get_operation(
    operation_id: Annotated[str, Path(pattern=ID_PATTERN, description="The id of an operation.")],
    service: Service,
) -> Operation:
    """Return an operation: the request, its state, and its result or error. Poll while it is PENDING or RUNNING."""
    return service.operation(operation_id)


@router.get("/events", summary="List events", openapi_extra=needs(Role.VIEWER))
def list_events(service: Service, job: OfJob = None, limit: Limit = 100, after: EventId = 0) -> Page[Event]:
    """List the audit log, oldest first: who did what, and when. `next` is never null, so you can continue later."""
    found = service.events(job, after, limit)
    return Page(items=found, next=str(found[-1].id if found else after))


@router.get(
    "/events/stream",
    summary="Follow events",
    response_class=StreamingResponse,
    responses=EVENT_STREAM,
    openapi_extra=needs(Role.VIEWER),
)
async def stream_events(
    request: Request,
    service: Service,
    job: OfJob = None,
    after: EventId = 0,
    seconds: Seconds = 3600,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Stream events as they happen, as server-sent events: `id`, `event: event` and `data`, the JSON of the event.

    A client that reconnects with `Last-Event-ID` misses nothing.
    """
    begin = after if last_event_id is None else last_event_id

    def read(place: int) -> list[Event]:
        return service.events(job, place, _MAX_EVENTS)

    return await event_stream(request, tail("event", read, lambda event: event.id, begin), seconds)


@router.get(
    "/jobs/{job_id}/stream",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses=EVENT_STREAM,
    openapi_extra=needs(Role.VIEWER),
)
async def stream_job(
    request: Request, job_id: JobId, service: Service, seconds: Seconds = 3600
) -> StreamingResponse:
    """Stream a job each time it or its progress changes, as server-sent events: `event: job` and `data`, its JSON."""
    shown: Job | None = None

    def news() -> list[str]:
        nonlocal shown
        job = service.get(job_id)
        if job == shown:
            return []
        shown = job
        return [message("job", job)]

    return await event_stream(request, news, seconds)
