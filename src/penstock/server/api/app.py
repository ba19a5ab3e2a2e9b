"""The app: all routes behind the guard, with a description of what each takes, returns and needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.types import Lifespan

from penstock.base.version import __version__
from penstock.server.api import commands, events, job_deletion, job_views, jobs, sessions, state
from penstock.server.api.access import Role
from penstock.server.api.context import Context
from penstock.server.api.guard import COOKIE, Guard
from penstock.server.api.problems import PROBLEM_TYPE, Problem, install_problems
from penstock.server.api.routes import (
    PUBLIC,
    ROLE_FIELD,
    DeclaringMount,
    check_declared,
    needs,
    new_router,
)

__all__ = ["create_app", "describe"]

_ABOUT: Final = """See and steer jobs.

Send `Authorization: Bearer TOKEN`, or the cookie that `/login` sets in a browser. `x-role` names the role that an
operation needs; `operator` includes `viewer`, `admin` includes both. Requests that take time return 202 and an
operation: get it by its id until it is DONE or FAILED. Errors are problem documents (RFC 9457)."""
_PROBLEMS: Final = {
    "400": "The request cannot be read.",
    "401": "The token or cookie is unknown.",
    "403": "The role, or the page that sent it, may not do this.",
    "404": "This id is unknown.",
    "409": "The job is in a state that does not allow this.",
    "413": "The request is too large.",
    "421": "The server does not have this name.",
    "422": "The request does not match the description, or its Idempotency-Key was used for another one.",
    "503": "The store or another system does not answer now; try again.",
}
_PAGE_TYPE: Final = "text/html"
_METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


def create_app(
    context: Context, mounts: Sequence[DeclaringMount] = (), lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    """The app, with other apps mounted below their paths, and what those need while it runs.

    Raises UndeclaredRouteError when a route does not declare its role.
    """
    app = FastAPI(
        title="penstock",
        version=__version__,
        description=_ABOUT,
        # FastAPI's own pages would fetch scripts from other machines.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.context = context
    app.state.streams = 0
    install_problems(app)
    app.add_middleware(Guard, door=context.door)
    description = new_router("server")

    @description.get(
        "/openapi.json",
        summary="Get this description",
        openapi_extra=needs(Role.VIEWER),
        include_in_schema=True,
    )
    def get_description() -> JSONResponse:
        """The description of the API (OpenAPI)."""
        return JSONResponse(describe(app))

    for router in (
        sessions.login_router,
        sessions.router,
        jobs.router,
        job_deletion.router,
        events.router,
        commands.router,
        state.router,
        job_views.router,
        job_views.metrics_router,
        description,
    ):
        # Added as they are, not included, so that each route can be asked for its role.
        app.router.routes.extend(router.routes)
    app.router.routes.extend(mounts)
    check_declared(app.routes)
    return app


def describe(app: FastAPI) -> dict[str, Any]:
    """The description of an app. It is built once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _with_problems(made)
        app.openapi_schema = made
    return app.openapi_schema


def _with_problems(made: dict[str, Any]) -> None:
    """Add to each operation who may use it, and that its errors are problem documents."""
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path in made["paths"].values():
        for method in _METHODS & path.keys():
            operation = path[method]
            for status, meaning in _PROBLEMS.items():
                # Pages for people stay beside the document.
                own = operation["responses"].get(status, {}).get("content", {})
                pages = {kind: said for kind, said in own.items() if kind == _PAGE_TYPE}
                operation["responses"][status] = {"description": meaning, "content": pages | content}
            public = operation[ROLE_FIELD] == PUBLIC
            operation["security"] = [] if public else [{"token": []}, {"session": []}]
