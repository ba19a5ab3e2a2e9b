"""Routing: each route declares the role that it needs, and refuses other users before it reads the request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount

from penstock.errors import PenstockError
from penstock.server.api.access import Principal, Role
from penstock.server.service.job_resources import ID_PATTERN

__all__ = [
    "API",
    "LARGEST",
    "PUBLIC",
    "ROLE_FIELD",
    "After",
    "Asker",
    "DeclaringMount",
    "GuardedRoute",
    "JobId",
    "Limit",
    "UndeclaredRouteError",
    "check_declared",
    "declared_role",
    "needs",
    "new_router",
]

API: Final = "/v1"
"""The prefix of the paths of this version of the API."""

LARGEST: Final = (1 << 63) - 1
"""The largest integer in a request, which every store can keep."""

ROLE_FIELD: Final = "x-role"
"""The field in the OpenAPI description that holds the role of an endpoint."""

PUBLIC: Final = "public"
"""The value of the role field for endpoints that need no user."""


class UndeclaredRouteError(PenstockError):
    """A route without a declared role: a bug in penstock, with which the server does not start."""


def needs(role: Role | None) -> dict[str, Any]:
    """Return the role declaration of a route, for its `openapi_extra`. With None, the route needs no user."""
    return {ROLE_FIELD: PUBLIC if role is None else role.value}


class GuardedRoute(APIRoute):
    """A route that admits only users with the declared role."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that checks the role first, so that other users do not learn what a valid request is."""
        handle = super().get_route_handler()
        needed = declared_role(self)

        async def guarded(request: Request) -> Response:
            if needed is not None:
                principal: Principal | None = request.state.principal
                if principal is None:
                    raise HTTPException(
                        401, "The token or cookie is missing or unknown.", {"WWW-Authenticate": "Bearer"}
                    )
                if not principal.role.covers(needed):
                    raise HTTPException(
                        403,
                        f"This needs the role {needed}, but {principal.name} has the role {principal.role}.",
                    )
            return await handle(request)

        return guarded


def declared_role(route: BaseRoute) -> Role | None:
    """Return the declared role of a route; None if it is public. Raises UndeclaredRouteError if it declares nothing."""
    declared = (getattr(route, "openapi_extra", None) or {}).get(ROLE_FIELD)
    if not isinstance(route, GuardedRoute) or declared is None:
        raise UndeclaredRouteError(f"The route {getattr(route, 'path', route)} does not declare a role.")
    return None if declared == PUBLIC else Role(declared)


def check_declared(routes: Iterable[BaseRoute]) -> None:
    """Raise UndeclaredRouteError unless each route declares its role. Mounts check their own pages."""
    for route in routes:
        if not isinstance(route, DeclaringMount):
            declared_role(route)


class DeclaringMount(Mount):
    """An app mounted below a path, which checks the declared role of each of its pages.

    Its constructor raises UndeclaredRouteError for a page without a declared role.
    """

    def page_roles(self) -> dict[str, Role]:
        """Return the roles that its pages need, by full path."""
        raise NotImplementedError


def new_router(tag: str, prefix: str = API) -> APIRouter:
    """Return a router of guarded routes."""
    return APIRouter(prefix=prefix, route_class=GuardedRoute, tags=[tag])


def _asker(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


Asker = Annotated[Principal, Depends(_asker)]
JobId = Annotated[str, Path(pattern=ID_PATTERN, description="The id of a job.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="The maximum number of items.")]
After = Annotated[
    str | None,
    Query(
        pattern=r"^[A-Za-z0-9_.-]{1,256}$",
        description="`next` of the previous page. Default: the first page.",
    ),
]
