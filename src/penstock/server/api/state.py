"""Routes for state: the states and models of a job's steps, keys with their values, and dumps to download."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query
from fastapi.responses import StreamingResponse

from penstock.commands.listed_models import ListedModel
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.query_answers import AnswerContent
from penstock.savepoints.state_pages import KeyPage, KeysWanted
from penstock.server.api.access import Role
from penstock.server.api.changes import Change
from penstock.server.api.context import Reader, Service
from penstock.server.api.models import DumpRequest, Page, QueryRequest
from penstock.server.api.routes import LARGEST, After, Asker, JobId, Limit, needs, new_router
from penstock.server.service.job_resources import ID_PATTERN, Operation
from penstock.server.service.service import Dump
from penstock.server.service.view_resources import StateStep

__all__ = ["router"]

_ZIP: Final = "application/zip"

router = new_router("state")

DumpId = Annotated[str, Path(pattern=ID_PATTERN, description="The id of a dump.")]


@router.get("/jobs/{job_id}/state", summary="List the states of a job", openapi_extra=needs(Role.VIEWER))
def list_state(job_id: JobId, reader: Reader) -> list[StateStep]:
    """List the steps of a job with their states and numbers of keys."""
    return reader.states(job_id)


@router.get("/jobs/{job_id}/models", summary="List the models of a job", openapi_extra=needs(Role.VIEWER))
def list_models(job_id: JobId, reader: Reader) -> list[ListedModel]:
    """List the models that the steps of a job declare, with their versions and what these have scored.

    Commands change them: `POST /jobs/{job_id}/commands`.
    """
    return reader.models(job_id)


# Values may contain anything, so viewers may not read them.
@router.get(
    "/jobs/{job_id}/state/keys", summary="List keys with their values", openapi_extra=needs(Role.OPERATOR)
)
def list_keys(
    job_id: JobId,
    reader: Reader,
    step: Annotated[str, Query(min_length=1, max_length=256, description="The step that has the keys.")],
    key: Annotated[
        str | None,
        Query(
            max_length=4096,
            description="Return only this key, as JSON: a list if it has several fields. Text needs no quotes.",
        ),
    ] = None,
    contains: Annotated[
        str, Query(max_length=256, description="Return only keys whose JSON contains this text.")
    ] = "",
    batch: Annotated[
        int | None,
        Query(
            ge=-1,
            le=LARGEST,
            description="Read the state after this micro-batch. Default: the newest committed one.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="The maximum number of keys.")] = 50,
    after: Annotated[
        str | None,
        Query(
            pattern=r"^[0-9]{1,8}\.[0-9a-f]{32}$",
            description="`next` of the previous page. Default: the first page.",
        ),
    ] = None,
) -> KeyPage:
    """List the keys of a step with their values, in the order of key groups, after a committed micro-batch.

    A process of its own, with a low priority, answers one request after the other. If others take too long, the
    response is 503; then retry. For a key with more than 64 KiB of state, or 1 MiB if it is requested alone, only the
    size is returned.
    """
    wanted = KeysWanted(step=step, key=key, contains=contains, limit=limit, after=after, batch=batch)
    return reader.keys(job_id, wanted)


@router.post(
    "/jobs/{job_id}/state/query", summary="Query the state of a job", openapi_extra=needs(Role.OPERATOR)
)
def query_state(job_id: JobId, request: QueryRequest, reader: Reader) -> AnswerContent:
    """Answer a query in SQL over the state after the newest committed micro-batch, which changes nothing.

    A process of its own, with a low priority, answers one query after the other. If others take too long, the
    response is 503; then retry. An error in the query is 400, with the position.
    """
    return reader.query(job_id, request.sql, QueryLimits(request.memory_mb, request.seconds, request.rows))


@router.post(
    "/jobs/{job_id}/state/dumps",
    status_code=202,
    summary="Dump the state of a job",
    openapi_extra=needs(Role.OPERATOR),
)
def dump_state(job_id: JobId, request: DumpRequest, service: Service, change: Change) -> Operation:
    """Dump the state while the job continues, or of a job that is not running. The result has the id of the dump."""
    operation = service.dump(job_id, change.who, change.key, form=request.format, batch=request.batch)
    return change.accept(operation)


@router.get("/dumps", summary="List dumps", openapi_extra=needs(Role.VIEWER))
def list_dumps(service: Service, limit: Limit = 100, after: After = None) -> Page[Dump]:
    """List the dumps that can be downloaded, in the order of their ids."""
    wanted = [dump for dump in service.dumps() if after is None or dump.id > after]
    return Page.of(wanted, limit, lambda dump: dump.id)


@router.get(
    "/dumps/{dump_id}",
    summary="Download a dump",
    response_class=StreamingResponse,
    responses={200: {"content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
    openapi_extra=needs(Role.OPERATOR),
)
def download_dump(dump_id: DumpId, service: Service) -> StreamingResponse:
    """Download a dump as a zip archive: the tables of its states, and its manifest."""
    name = {"Content-Disposition": f'attachment; filename="{dump_id}.zip"'}
    return StreamingResponse(service.dump_archive(dump_id), media_type=_ZIP, headers=name)


@router.delete(
    "/dumps/{dump_id}", status_code=204, summary="Delete a dump", openapi_extra=needs(Role.OPERATOR)
)
def delete_dump(dump_id: DumpId, service: Service, asker: Asker) -> None:
    """Delete a dump permanently."""
    service.delete_dump(dump_id, asker.name)
