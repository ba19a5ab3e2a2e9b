"""Routes for jobs: submit, read, control."""

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

# More than any time has, and few enough for any store.
_MOST_DIGITS = 18

router = new_router("jobs")

SavepointId = Annotated[str, Path(pattern=ID_PATTERN, description="The id of a savepoint.")]


@router.get("/definitions", summary="List the jobs that may be submitted", openapi_extra=needs(Role.VIEWER))
def list_definitions(service: Service) -> Definitions:
    """The definitions in the server's folders, and files there that should define a job and do not."""
    return service.definitions()


@router.get("/jobs", summary="List jobs", openapi_extra=needs(Role.VIEWER))
def list_jobs(
    service: Service,
    status: Annotated[
        list[JobStatus] | None, Query(description="Only jobs with one of these statuses.")
    ] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Job]:
    """The jobs, newest first, without their progress."""
    place = None if after is None else _place(after)
    found = service.list_jobs(status or tuple(JobStatus), limit + 1, place)
    return Page.of(found, limit, lambda job: f"{job.created_ms}-{job.id}")


@router.post("/jobs", status_code=201, summary="Submit a job", openapi_extra=needs(Role.OPERATOR))
def submit_job(submission: Submission, service: Service, change: Change) -> Operation:
    """Run a job by its definition. The operation is done at once; `job` is the id of the new job, as in Location."""
    done = service.submit(submission, change.who, change.key)
    return change.accept(done, f"/v1/jobs/{done.job}")


@router.get("/jobs/{job_id}", summary="Get a job", openapi_extra=needs(Role.VIEWER))
def get_job(job_id: JobId, service: Service) -> Job:
    """A job, with its progress."""
    return service.get(job_id)


@router.patch(
    "/jobs/{job_id}",
    status_code=202,
    summary="Pause, resume, stop or cancel a job",
    openapi_extra=needs(Role.OPERATOR),
)
def change_job(job_id: JobId, wanted: DesiredChange, service: Service, change: Change) -> Operation:
    """Set the desired status of a job. `savepoint` and `drain` go with FINISHED only."""
    if (wanted.savepoint or wanted.drain) and wanted.desired is not Desired.FINISHED:
        raise JobDefinitionError(
            f"savepoint and drain go with FINISHED, and desired is {wanted.desired}. Leave them out."
        )
    return change.accept(_ask(service, job_id, wanted, change.who, change.key))


@router.post(
    "/jobs/{job_id}/rescale", status_code=202, summary="Rescale a job", openapi_extra=needs(Role.OPERATOR)
)
def rescale_job(job_id: JobId, rescale: Rescale, service: Service, change: Change) -> Operation:
    """Change the number of tasks of a job. The result says how long the job was interrupted."""
    return change.accept(service.rescale(job_id, rescale.parallelism, change.who, change.key))


@router.post(
    "/jobs/{job_id}/savepoints",
    status_code=202,
    summary="Take a savepoint",
    openapi_extra=needs(Role.OPERATOR),
)
def take_savepoint(job_id: JobId, service: Service, change: Change) -> Operation:
    """Take a savepoint while the job goes on. The result has its id."""
    return change.accept(service.savepoint(job_id, change.who, change.key))


@router.get("/savepoints", summary="List savepoints", openapi_extra=needs(Role.VIEWER))
def list_savepoints(service: Service, limit: Limit = 100, after: After = None) -> Page[Savepoint]:
    """The savepoints that jobs may begin with, in the order of their ids."""
    found = sorted(service.savepoints(), key=lambda savepoint: savepoint.id)
    wanted = [savepoint for savepoint in found if after is None or savepoint.id > after]
    return Page.of(wanted, limit, lambda savepoint: savepoint.id)


@router.get("/savepoints/{savepoint_id}", summary="Get a savepoint", openapi_extra=needs(Role.VIEWER))
def get_savepoint(savepoint_id: SavepointId, service: Service) -> SavepointDetails:
    """A savepoint with its tables, and the jobs that began with it."""
    return service.savepoint_details(savepoint_id)


# Only admins may do what cannot be undone.
@router.delete(
    "/savepoints/{savepoint_id}",
    status_code=204,
    summary="Delete a savepoint",
    openapi_extra=needs(Role.ADMIN),
)
def delete_savepoint(savepoint_id: SavepointId, service: Service, asker: Asker) -> None:
    """Delete a savepoint permanently. Refused while a job that began with it is not over."""
    service.delete_savepoint(savepoint_id, asker.name)


@router.get("/jobs/{job_id}/runs", summary="List the runs of a job", openapi_extra=needs(Role.VIEWER))
def list_runs(job_id: JobId, service: Service, limit: Limit = 100, after: After = None) -> Page[Run]:
    """The runs of a job, newest first."""
    found = service.runs(job_id)
    if after is not None:
        number = int(after) if after.isascii() and after.isdigit() else 0
        found = [run for run in found if run.run < number]
    return Page.of(found, limit, lambda run: str(run.run))


# A job's own code may print anything, so viewers do not see it.
@router.get("/jobs/{job_id}/log", summary="Get what a run has printed", openapi_extra=needs(Role.OPERATOR))
def get_log(
    job_id: JobId,
    service: Service,
    run: Annotated[
        int | None, Query(ge=1, lt=1 << 31, description="Which run. Default: the newest one.")
    ] = None,
    most_bytes: Annotated[int, Query(ge=1, le=1 << 20, description="How much, at most.")] = 65536,
    begin: Annotated[
        int | None,
        Query(ge=0, lt=1 << 63, description="The byte to begin with: `end` of the previous response."),
    ] = None,
) -> Log:
    """What a run has printed: its end, or what comes from `begin` on."""
    return service.log(job_id, run, most_bytes, begin)


def _ask(service: JobService, job_id: str, wanted: DesiredChange, who: str, key: str | None) -> Operation:
    if wanted.desired is Desired.RUNNING:
        return service.resume(job_id, who, key)
    if wanted.desired is Desired.PAUSED:
        return service.pause(job_id, who, key)
    if wanted.desired is Desired.CANCELED:
        return service.cancel(job_id, who, key)
    return service.stop(job_id, who, key, savepoint=wanted.savepoint, drain=wanted.drain)


def _place(after: str) -> tuple[int, str]:
    created, _, job_id = after.partition("-")
    if not (created.isascii() and created.isdigit() and len(created) <= _MOST_DIGITS):
        raise JobDefinitionError(f"after={after} is not the `next` of a page of jobs.")
    return int(created), job_id
