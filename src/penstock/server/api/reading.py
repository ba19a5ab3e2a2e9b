"""The routes of what is inside a job: its plan and its metrics."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from penstock.server.api.access import Role
from penstock.server.api.context import Reader
from penstock.server.api.reading_models import Batch, Metrics, Plan
from penstock.server.api.routing import JobId, Limit, needs, new_router
from penstock.server.api.streaming import EVENT_STREAM, Seconds, event_stream, message

__all__ = ["metrics_router", "router"]

_MOST_BATCHES: Final = 500
_LARGEST: Final = (1 << 63) - 1
_LAST_MS: Final = 253402300799999
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

router = new_router("reading")
metrics_router = new_router("reading", prefix="")

BatchNumber = Annotated[
    int | None, Query(ge=-1, le=_LARGEST, description="Only micro-batches behind this one.")
]


@router.get("/jobs/{job_id}/plan", summary="Get the plan of a job", openapi_extra=needs(Role.VIEWER))
def get_plan(job_id: JobId, reader: Reader) -> Plan:
    """The streams, steps and sinks of a job and how they hang together, as its newest run has described them."""
    return Plan.model_validate(reader.plan(job_id))


@router.get("/jobs/{job_id}/metrics", summary="Get the metrics of a job", openapi_extra=needs(Role.VIEWER))
def get_metrics(
    job_id: JobId,
    reader: Reader,
    after: BatchNumber = None,
    since_ms: Annotated[
        int | None, Query(ge=0, le=_LAST_MS, description="Only micro-batches that ended after this time.")
    ] = None,
    limit: Limit = 60,
    window_s: Annotated[int, Query(ge=1, le=3600, description="Over how many seconds rates are taken.")] = 60,
) -> Metrics:
    """Rates, what the streams, steps and sinks have done, and the newest micro-batches one by one."""
    return Metrics.model_validate(
        reader.metrics(job_id, limit, after=after, since_ms=since_ms, window_s=window_s)
    )


@router.get(
    "/jobs/{job_id}/metrics/stream",
    summary="Follow the metrics of a job",
    response_class=StreamingResponse,
    responses=EVENT_STREAM,
    openapi_extra=needs(Role.VIEWER),
)
async def stream_metrics(
    request: Request,
    job_id: JobId,
    reader: Reader,
    after: BatchNumber = None,
    seconds: Seconds = 3600,
    last_event_id: Annotated[int | None, Header(ge=0, le=_LARGEST)] = None,
) -> StreamingResponse:
    """Each micro-batch when it is committed, as server-sent events: `id`, its number, `event: batch` and `data`.

    It begins with the newest one, or behind the one that is named.
    """
    place = after if last_event_id is None else last_event_id

    def news() -> list[str]:
        nonlocal place
        most = 1 if place is None else _MOST_BATCHES
        told = []
        for found in reader.batches(job_id, most, after=place):
            place = found.batch
            told.append(message("batch", Batch.model_validate(found).model_dump_json(), found.batch))
        return told

    first = await run_in_threadpool(news)
    return event_stream(request, news, seconds, first)


@metrics_router.get(
    "/metrics",
    summary="Get the metrics of all jobs for Prometheus",
    response_class=Response,
    responses={200: {"content": {_TEXT: {"schema": {"type": "string"}}}}},
    openapi_extra=needs(Role.VIEWER),
)
def get_exposition(reader: Reader) -> Response:
    """The newest figures of all jobs that are not over, in the text format of Prometheus.

    The label `job_name` is the id of the job, since jobs of one name may run beside each other.
    """
    return Response(reader.exposition(), media_type=_TEXT)
