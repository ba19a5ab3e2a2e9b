"""Problems: all errors of the API are problem documents (RFC 9457), which say what happened and what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from penstock.bindings.secrets import redact
from penstock.errors import (
    BindingError,
    CheckpointError,
    CommandRefusedError,
    ExternalSystemError,
    IdempotencyError,
    JobChangedError,
    JobDefinitionError,
    JobStateError,
    PenstockError,
    UnknownIdError,
    fault_of,
    is_retryable,
)

__all__ = ["PROBLEM_TYPE", "Problem", "install_problems", "problem"]

PROBLEM_TYPE: Final = "application/problem+json"

_log: Final = logging.getLogger(__name__)
_STATUSES: Final[tuple[tuple[type[PenstockError], int], ...]] = (
    (UnknownIdError, 404),
    (JobStateError, 409),
    (JobChangedError, 409),
    (IdempotencyError, 422),
    (JobDefinitionError, 422),
    (BindingError, 422),
    (CommandRefusedError, 422),
    (CheckpointError, 409),
    (ExternalSystemError, 503),
)
_RETRY_S: Final = "5"


class Problem(BaseModel):
    """A problem document (RFC 9457). `type` names the kind of problem; `detail` says what happened and what to do."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:penstock:problem:unknown-id",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "There is no job 'rooms-1f'.",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    errors: list[str] | None = Field(
        None, description="The errors of an invalid request, one for each field."
    )


def problem(
    status: int,
    kind: str,
    detail: str,
    errors: list[str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a response with a problem document."""
    content = {
        "type": f"urn:penstock:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors:
        content["errors"] = errors
    return JSONResponse(content, status, headers=dict(headers or {}), media_type=PROBLEM_TYPE)


def install_problems(app: FastAPI) -> None:
    """Make an app return problem documents for all errors."""
    app.add_exception_handler(PenstockError, _on_penstock_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_penstock_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    if status is None:
        status = {"user": 400, "external": 503, "internal": 500}[fault_of(error)]
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("A request failed: %s", redact(str(error)))
    headers = {"Retry-After": _RETRY_S} if is_retryable(error) else None
    return problem(status, _kind_of(type(error)), redact(str(error)), headers=headers)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Leave out the input, which may contain a secret.
    errors = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
    return problem(422, "invalid-request", "The request does not match the API description.", errors)


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return problem(error.status_code, kind, str(error.detail), headers=error.headers)


def _kind_of(error: type[Any]) -> str:
    name = error.__name__.removesuffix("Error")
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).strip("-")
