"""Routes for the internals of a job: its plan, metrics, checkpoints, dead letters and settings."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from penstock.server.api.access import Role
from penstock.server.api.context import Reader
from penstock.server.api.event_streams import EVENT_STREAM, LastEventId, Seconds, event_stream, tail
from penstock.server.api.routes import LARGEST, JobId, Limit, needs, new_router
from penstock.server.service.metrics_resources import Batch, Metrics
from penstock.server.service.plan_resources import Plan
from penstock.server.service.view_resources import Advice, Checkpoints, DeadLetters, JobConfig

__all__ = ["metrics_router", "router"]

_MAX_BATCHES: Final = 500
_LAST_MS: Final = 253402300799999
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

router = new_router("reading")
metrics_router = new_router("reading", prefix="")

BatchNumber = Annotated[
    int | None, Query(ge=-1, le=LARGEST, description="Return only micro-batches after this one.")
]


@router.get("/jobs/{job_id}/plan", summary="Get the plan of a job", openapi_extra=needs(Role.VIEWER))
def get_plan(job_id: JobId, reader: Reader) -> Plan:
    """Return the graph of a job: streams, steps and sinks, and their connections, as its newest run describes them."""
    return reader.plan(job_id)


@router.get("/jobs/{job_id}/metrics", summary="Get the metrics of a job", openapi_extra=needs(Role.VIEWER))
def get_metrics(
    job_id: JobId,
    reader: Reader,
    after: BatchNumber = None,
    since_ms: Annotated[
        int | None,
        Query(ge=0, le=_LAST_MS, description="Return only micro-batches that ended after this time."),
    ] = None,
    limit: Limit = 60,
    window_s: Annotated[
        int, Query(ge=1, le=3600, description="The number of seconds over which rates are measured.")
    ] = 60,
) -> Metrics:
    """Return the current rates, the totals of streams, steps and sinks, and the newest micro-batches, oldest first."""
    return reader.metrics(job_id, limit, after=after, since_ms=since_ms, window_s=window_s)


@router.get("/jobs/{job_id}/advice", summary="Get advice on a job", openapi_extra=needs(Role.VIEWER))
def get_advice(
    job_id: JobId,
    reader: Reader,
    window_s: Annotated[
        int,
        Query(ge=1, le=86_400, description="The number of seconds over which the arrival rate is measured."),
    ] = 600,
    cores: Annotated[
        int | None,
        Query(
            ge=1,
            le=1 << 16,
            description="The number of cores for its tasks. Default: the number in its metrics.",
        ),
    ] = None,
) -> Advice:
    """Return which parallelism, batch interval and number of cores a job needs, and why. Changes nothing."""
    return reader.advice(job_id, window_s, cores)


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
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Stream each micro-batch as it is committed, as server-sent events: `id` (its number), `event: batch` and `data`.

    The stream begins after the micro-batch in `after` or `Last-Event-ID`, by default with the newest one.
    """
    begin = after if last_event_id is None else last_event_id

    def read(place: int | None) -> list[Batch]:
        return reader.batches(job_id, 1 if place is None else _MAX_BATCHES, after=place)

    return await event_stream(request, tail("batch", read, lambda batch: batch.batch, begin), seconds)


@router.get(
    "/jobs/{job_id}/checkpoints", summary="List the checkpoints of a job", openapi_extra=needs(Role.VIEWER)
)
def list_checkpoints(
    job_id: JobId,
    reader: Reader,
    limit: Limit = 100,
    after: Annotated[
        int | None,
        Query(ge=0, le=LARGEST, description="`next` of the previous page. Default: the first page."),
    ] = None,
) -> Checkpoints:
    """List the micro-batches to which the job can go back, newest first, and describe their checkpoint."""
    return reader.checkpoints(job_id, limit, after)


# Records may contain anything, so viewers may not read them.
@router.get(
    "/jobs/{job_id}/dead-letters",
    summary="List the newest dead letters of a job",
    openapi_extra=needs(Role.OPERATOR),
)
def list_dead_letters(
    job_id: JobId,
    reader: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="The maximum number of dead letters.")] = 50,
) -> DeadLetters:
    """List the newest records that could not be processed, with the reasons, from where the job writes them."""
    return reader.dead_letters(job_id, limit)


@router.get("/jobs/{job_id}/config", summary="Get the settings of a job", openapi_extra=needs(Role.VIEWER))
def get_job_config(job_id: JobId, reader: Reader) -> JobConfig:
    """Return the settings with which a job runs, each with its default, and the limits of its streams."""
    return reader.config(job_id)


@metrics_router.get(
    "/metrics",
    summary="Get the metrics of all jobs for Prometheus",
    response_class=Response,
    responses={200: {"content": {_TEXT: {"schema": {"type": "string"}}}}},
    openapi_extra=needs(Role.VIEWER),
)
def get_exposition(reader: Reader) -> Response:
    """Return the newest metrics of all jobs that have not ended, in the text format of Prometheus.

    The label `job_name` is the id of the job, since several jobs may have the same name.
    """
    return Response(reader.exposition(), media_type=_TEXT)
