"""The routes of state: what the steps of a job hold, key by key, and dumps of it to take away."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Response
from fastapi.responses import StreamingResponse

from penstock.savepoints.state_pages import KeysWanted
from penstock.server.api.access import Role
from penstock.server.api.context import Reader, Service, Wake
from penstock.server.api.models import ID_PATTERN, Operation, Page, StateStep
from penstock.server.api.routes import After, Asker, IdempotencyKey, JobId, Limit, needs, new_router
from penstock.server.api.view_models import Dump, DumpRequest, Keys

__all__ = ["router"]

_ZIP: Final = "application/zip"
_LARGEST: Final = (1 << 63) - 1

router = new_router("state")

DumpId = Annotated[str, Path(pattern=ID_PATTERN, description="The id of a dump.")]


@router.get("/jobs/{job_id}/state", summary="List states", openapi_extra=needs(Role.VIEWER))
def list_state(job_id: JobId, reader: Reader) -> list[StateStep]:
    """The steps of a job with their states, and how many keys they hold."""
    return [StateStep(**step) for step in reader.states(job_id)]


# Values may hold anything, so that not everybody who may look sees them.
@router.get(
    "/jobs/{job_id}/state/keys", summary="List keys with their values", openapi_extra=needs(Role.OPERATOR)
)
def list_keys(
    job_id: JobId,
    reader: Reader,
    step: Annotated[str, Query(min_length=1, max_length=256, description="The step that holds them.")],
    key: Annotated[
        str | None,
        Query(
            max_length=4096,
            description="Only this key, as JSON: several fields as a list. A text may stand as it is.",
        ),
    ] = None,
    contains: Annotated[
        str, Query(max_length=256, description="Only keys whose JSON contains this text.")
    ] = "",
    batch: Annotated[
        int | None,
        Query(
            ge=-1, le=_LARGEST, description="After this micro-batch. Default: the newest that is committed."
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="How many, at most.")] = 50,
    after: Annotated[
        str | None,
        Query(
            pattern=r"^[0-9]{1,8}\.[0-9a-f]{32}$",
            description="`next` of the page before; the first page without it.",
        ),
    ] = None,
) -> Keys:
    """What a step holds, key by key, in the order of key groups, after a committed micro-batch.

    A process of its own reads it: the first answer takes some seconds, and where it takes longer the answer is 503, to
    ask again. Of a key that holds more than 64 KiB, or 1 MiB when it is asked for by itself, only the size is told.
    """
    wanted = KeysWanted(step=step, key=key, contains=contains, limit=limit, after=after, batch=batch)
    return Keys.model_validate(reader.keys(job_id, wanted))


@router.post(
    "/jobs/{job_id}/state/dumps",
    status_code=202,
    summary="Dump the state",
    openapi_extra=needs(Role.OPERATOR),
)
def dump_state(
    job_id: JobId,
    request: DumpRequest,
    service: Service,
    asker: Asker,
    wake: Wake,
    response: Response,
    key: IdempotencyKey = None,
) -> Operation:
    """Dump the state of a job, which goes on meanwhile. The result has the dump's id."""
    operation = service.dump(job_id, asker.name, key, form=request.format, batch=request.batch)
    response.headers["Location"] = f"/v1/operations/{operation.id}"
    wake()
    return Operation.model_validate(operation)


@router.get("/dumps", summary="List dumps", openapi_extra=needs(Role.VIEWER))
def list_dumps(service: Service, limit: Limit = 100, after: After = None) -> Page[Dump]:
    """The dumps that can be taken away, in the order of their ids."""
    behind = [dump for dump in service.dumps() if after is None or dump.id > after]
    page = behind[:limit]
    return Page(
        items=[Dump.model_validate(one) for one in page], next=page[-1].id if len(behind) > limit else None
    )


@router.get(
    "/dumps/{dump_id}",
    summary="Download a dump",
    response_class=StreamingResponse,
    responses={200: {"content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
    openapi_extra=needs(Role.OPERATOR),
)
def download_dump(dump_id: DumpId, service: Service) -> StreamingResponse:
    """All files of a dump as one zip archive: the tables of its states, and its manifest."""
    name = {"Content-Disposition": f'attachment; filename="{dump_id}.zip"'}
    return StreamingResponse(service.dump_archive(dump_id), media_type=_ZIP, headers=name)


@router.delete(
    "/dumps/{dump_id}", status_code=204, summary="Delete a dump", openapi_extra=needs(Role.OPERATOR)
)
def delete_dump(dump_id: DumpId, service: Service, asker: Asker) -> None:
    """Delete a dump for good."""
    service.delete_dump(dump_id, asker.name)
