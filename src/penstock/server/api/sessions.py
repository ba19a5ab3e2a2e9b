"""The routes of the server itself: to be let in, who one is, how the server was started, and that it lives."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from penstock.server.api.access import Role
from penstock.server.api.context import Config, context_of
from penstock.server.api.guard import COOKIE, cookie_in, headers_of
from penstock.server.api.models import Health, Person, ServerConfig
from penstock.server.api.routing import Asker, needs, new_router

__all__ = ["login_router", "router"]

router = new_router("server")
login_router = new_router("server", prefix="")


@login_router.get(
    "/login",
    status_code=303,
    summary="Exchange a token for a cookie",
    response_class=RedirectResponse,
    openapi_extra=needs(None),
)
async def login(
    request: Request,
    token: Annotated[str, Query(max_length=256, description="A token that the server knows.")],
) -> RedirectResponse:
    """What the URL that `penstock serve` prints leads to: a browser gets a cookie for its session, and goes on."""
    # In the event loop, as the guard, so that sessions have one thread.
    context = context_of(request)
    principal = context.door.tokens.find(token)
    if principal is None:
        raise HTTPException(
            403, "Nobody is known by this token. Open the URL that penstock serve has printed."
        )
    cookie = context.door.sessions.begin(principal, context.door.clock_s())
    response = RedirectResponse(context.landing, 303)
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(context.door.sessions.lasts_s),
        path="/",
        secure=context.door.tls,
        httponly=True,
        samesite="strict",
    )
    return response


@router.delete("/session", status_code=204, summary="End the session", openapi_extra=needs(Role.VIEWER))
async def logout(request: Request, response: Response) -> None:
    """Forget the cookie that is sent."""
    cookie = cookie_in(headers_of(request.scope))
    if cookie is not None:
        context_of(request).door.sessions.end(cookie)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


@router.get("/me", summary="Who asks", openapi_extra=needs(Role.VIEWER))
def get_me(asker: Asker) -> Person:
    """The name and role of who asks."""
    return Person(name=asker.name, role=asker.role)


@router.get("/health", summary="Whether the server answers", openapi_extra=needs(None))
def get_health() -> Health:
    """For those who watch over processes. It tells nothing else."""
    return Health()


@router.get("/config", summary="How the server was started", openapi_extra=needs(Role.VIEWER))
def get_config(config: Config) -> ServerConfig:
    """The settings of the server, without secrets."""
    return config
