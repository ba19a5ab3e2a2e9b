"""Routes for jobs: submit, list and control them; their savepoints, runs and logs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from penstock.errors import JobDefinitionError
from penstock.server.api.access import Role
from penstock.server.api.changes import Change
from penstock.server.api.context import Service
from penstock.server.api.models import DesiredChange, Page, Rescale
from penstock.server.api.routes import After, Asker, JobId, Limit, needs, new_router
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.service.job_resources import (
    ID_PATTERN,
    Definitions,
    Job,
    Log,
    Operation,
    Run,
    Savepoint,
    SavepointDetails,
    Submission,
)
from penstock.server.service.service import JobService

__all__ = ["router"]

# More digits than any time has, but few enough for an integer of any store.
_MAX_DIGITS = 18

router = new_router("jobs")

SavepointId = Annotated[str, Path(pattern=ID_PATTERN, description="The id of a savepoint.")]


@router.get("/definitions", summary="List the jobs that can be submitted", openapi_extra=needs(Role.VIEWER))
def list_definitions(service: Service) -> Definitions:
    """List the job definitions in the server's folders, and the files there that fail to define a job."""
    return service.definitions()


@router.get("/jobs", summary="List jobs", openapi_extra=needs(Role.VIEWER))
def list_jobs(
    service: Service,
    status: Annotated[
        list[JobStatus] | None, Query(description="Return only jobs with one of these statuses.")
    ] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Job]:
    """List jobs, newest first, without their progress."""
    place = None if after is None else _parse_place(after)
    found = service.list_jobs(status or tuple(JobStatus), limit + 1, place)
    return Page.of(found, limit, lambda job: f"{job.created_ms}-{job.id}")


@router.post("/jobs", status_code=201, summary="Submit a job", openapi_extra=needs(Role.OPERATOR))
def submit_job(submission: Submission, service: Service, change: Change) -> Operation:
    """Submit a job by the id of its definition. Returns an operation that is DONE; its `job` is the id of the new job.

    Location is the URL of the job.
    """
    done = service.submit(submission, change.who, change.key)
    return change.accept(done, f"/v1/jobs/{done.job}")


@router.get("/jobs/{job_id}", summary="Get a job", openapi_extra=needs(Role.VIEWER))
def get_job(job_id: JobId, service: Service) -> Job:
    """Return a job, with its progress and the last scaling decision."""
    return service.get(job_id)


@router.patch(
    "/jobs/{job_id}",
    status_code=202,
    summary="Pause, resume, stop or cancel a job",
    openapi_extra=needs(Role.OPERATOR),
)
def change_job(job_id: JobId, wanted: DesiredChange, service: Service, change: Change) -> Operation:
    """Set the desired status of a job.

    RUNNING resumes it, PAUSED pauses it, FINISHED stops it between two micro-batches, CANCELED ends it at once. Only
    FINISHED allows `savepoint` and `drain`.
    """
    if (wanted.savepoint or wanted.drain) and wanted.desired is not Desired.FINISHED:
        raise JobDefinitionError(
            f"savepoint and drain require desired FINISHED, but it is {wanted.desired}. Leave them out."
        )
    return change.accept(_request_change(service, job_id, wanted, change.who, change.key))


@router.delete(
    "/jobs/{job_id}",
    status_code=204,
    summary="Delete a job that has ended",
    openapi_extra=needs(Role.ADMIN),
)
def delete_job(
    job_id: JobId,
    service: Service,
    asker: Asker,
    checkpoint: Annotated[
        bool, Query(description="Also delete its checkpoint. No job can then continue from its state.")
    ] = False,
) -> None:
    """Delete a FINISHED, FAILED or CANCELED job, with its runs and operations. Its events and savepoints stay."""
    service.delete(job_id, asker.name, checkpoint=checkpoint)


@router.post(
    "/jobs/{job_id}/rescale", status_code=202, summary="Rescale a job", openapi_extra=needs(Role.OPERATOR)
)
def rescale_job(job_id: JobId, rescale: Rescale, service: Service, change: Change) -> Operation:
    """Change the parallelism of a job. The operation's result states how long the job was interrupted."""
    return change.accept(service.rescale(job_id, rescale.parallelism, change.who, change.key))


@router.post(
    "/jobs/{job_id}/savepoints",
    status_code=202,
    summary="Take a savepoint",
    openapi_extra=needs(Role.OPERATOR),
)
def take_savepoint(job_id: JobId, service: Service, change: Change) -> Operation:
    """Take a savepoint while the job continues, or of a job that is not running. The result has its id."""
    return change.accept(service.savepoint(job_id, change.who, change.key))


@router.get("/savepoints", summary="List savepoints", openapi_extra=needs(Role.VIEWER))
def list_savepoints(service: Service, limit: Limit = 100, after: After = None) -> Page[Savepoint]:
    """List the savepoints that jobs can start from, in the order of their ids."""
    found = sorted(service.savepoints(), key=lambda savepoint: savepoint.id)
    wanted = [savepoint for savepoint in found if after is None or savepoint.id > after]
    return Page.of(wanted, limit, lambda savepoint: savepoint.id)


@router.get("/savepoints/{savepoint_id}", summary="Get a savepoint", openapi_extra=needs(Role.VIEWER))
def get_savepoint(savepoint_id: SavepointId, service: Service) -> SavepointDetails:
    """Return a savepoint with its tables and source positions, and the unfinished jobs that started from it."""
    return service.savepoint_details(savepoint_id)


# Deletion cannot be undone, so only admins may do it.
@router.delete(
    "/savepoints/{savepoint_id}",
    status_code=204,
    summary="Delete a savepoint",
    openapi_extra=needs(Role.ADMIN),
)
def delete_savepoint(savepoint_id: SavepointId, service: Service, asker: Asker) -> None:
    """Delete a savepoint permanently. Returns 409 while a job that started from it has not ended."""
    service.delete_savepoint(savepoint_id, asker.name)


@router.get("/jobs/{job_id}/runs", summary="List the runs of a job", openapi_extra=needs(Role.VIEWER))
def list_runs(job_id: JobId, service: Service, limit: Limit = 100, after: After = None) -> Page[Run]:
    """List the runs of a job, newest first."""
    found = service.runs(job_id)
    if after is not None:
        number = _parse_number(after, after, "runs")
        found = [run for run in found if run.run < number]
    return Page.of(found, limit, lambda run: str(run.run))


# A job's own code may print anything, so viewers may not read it.
@router.get("/jobs/{job_id}/log", summary="Get the output of a run", openapi_extra=needs(Role.OPERATOR))
def get_log(
    job_id: JobId,
    service: Service,
    run: Annotated[
        int | None, Query(ge=1, lt=1 << 31, description="The number of the run. Default: the newest.")
    ] = None,
    max_bytes: Annotated[int, Query(ge=1, le=1 << 20, description="The maximum number of bytes.")] = 65536,
    begin: Annotated[
        int | None,
        Query(ge=0, lt=1 << 63, description="The first byte: `end` of the previous response."),
    ] = None,
) -> Log:
    """Return the output of a run: its end, or the output from byte `begin` on. Secrets in it are not masked."""
    return service.log(job_id, run, max_bytes, begin)


def _request_change(
    service: JobService, job_id: str, wanted: DesiredChange, who: str, key: str | None
) -> Operation:
    if wanted.desired is Desired.RUNNING:
        return service.resume(job_id, who, key)
    if wanted.desired is Desired.PAUSED:
        return service.pause(job_id, who, key)
    if wanted.desired is Desired.CANCELED:
        return service.cancel(job_id, who, key)
    return service.stop(job_id, who, key, savepoint=wanted.savepoint, drain=wanted.drain)


def _parse_number(text: str, after: str, of: str) -> int:
    """Return the number in the place of a page, `after`, of a list of jobs or runs."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise JobDefinitionError(f"after={after} is not the `next` of a page of {of}. Leave it out to begin.")
    return int(text)


def _parse_place(after: str) -> tuple[int, str]:
    created, _, job_id = after.partition("-")
    return _parse_number(created, after, "jobs"), job_id
