"""Route to delete a job that has ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from penstock.server.api.access import Role
from penstock.server.api.context import Service
from penstock.server.api.routes import Asker, JobId, needs, new_router

__all__ = ["router"]

router = new_router("jobs")


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
