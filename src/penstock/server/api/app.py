"""App: all routes behind the guard, and the OpenAPI description of their parameters, responses and roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.types import Lifespan

from penstock.base.version import __version__
from penstock.server.api import commands, events, job_views, jobs, sessions, state
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

_ABOUT: Final = """Inspect and control jobs.

**Authentication.** Send `Authorization: Bearer TOKEN`, or the session cookie that `/login` sets in a browser. `x-role`
names the role that an endpoint requires; `operator` includes `viewer`, and `admin` includes both.

**Long requests** return 202 and an operation. Poll it by its id until its state is DONE or FAILED.

**Retries.** A POST or PATCH repeated with the same `Idempotency-Key` is executed once.

**Errors** are problem documents (RFC 9457). **Times** are milliseconds since 1970, in UTC."""
_PROBLEMS: Final = {
    "400": "The request cannot be read.",
    "401": "The token or cookie is missing or unknown.",
    "403": "The role does not allow this, or the request comes from a page of another site.",
    "404": "The id is unknown.",
    "409": "The job is in a state that does not allow this.",
    "413": "The request is too large.",
    "421": "The Host header is not one of the server's names.",
    "422": "The request is invalid, or its Idempotency-Key was used for a different request.",
    "503": "The store or another system does not answer; retry later.",
}
_PAGE_TYPE: Final = "text/html"
_METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


def create_app(
    context: Context, mounts: Sequence[DeclaringMount] = (), lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    """Create the app, with `mounts` below their paths and the `lifespan` that they need.

    Raises UndeclaredRouteError if a route does not declare its role.
    """
    app = FastAPI(
        title="penstock",
        version=__version__,
        description=_ABOUT,
        # FastAPI's own documentation pages would load scripts from other hosts.
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
        summary="Get the API description",
        openapi_extra=needs(Role.VIEWER),
        include_in_schema=True,
    )
    def get_description() -> JSONResponse:
        """Return this API description (OpenAPI)."""
        return JSONResponse(describe(app))

    for router in (
        sessions.login_router,
        sessions.router,
        jobs.router,
        events.router,
        commands.router,
        state.router,
        job_views.router,
        job_views.metrics_router,
        description,
    ):
        # Added as they are, not with include_router, so that the role of each route can be checked below.
        app.router.routes.extend(router.routes)
    app.router.routes.extend(mounts)
    check_declared(app.routes)
    return app


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of an app. It is built once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _add_problems(made)
        app.openapi_schema = made
    return app.openapi_schema


def _add_problems(made: dict[str, Any]) -> None:
    """Add to each endpoint its authentication, and problem documents as its error responses."""
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
                # Keep an endpoint's own HTML page next to the problem document.
                own = operation["responses"].get(status, {}).get("content", {})
                pages = {kind: said for kind, said in own.items() if kind == _PAGE_TYPE}
                operation["responses"][status] = {"description": meaning, "content": pages | content}
            public = operation[ROLE_FIELD] == PUBLIC
            operation["security"] = [] if public else [{"token": []}, {"session": []}]
