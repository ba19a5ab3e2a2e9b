"""The routes of what is inside a job: its plan."""

from __future__ import annotations

from penstock.server.api.access import Role
from penstock.server.api.context import Reader
from penstock.server.api.reading_models import Plan
from penstock.server.api.routing import JobId, needs, new_router

__all__ = ["router"]

router = new_router("reading")


@router.get("/jobs/{job_id}/plan", summary="Get the plan of a job", openapi_extra=needs(Role.VIEWER))
def get_plan(job_id: JobId, reader: Reader) -> Plan:
    """The streams, steps and sinks of a job and how they hang together, as its newest run has described them."""
    return Plan.model_validate(reader.plan(job_id))
