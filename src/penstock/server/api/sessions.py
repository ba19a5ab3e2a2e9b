"""The routes of the server itself: to be let in, who one is, how the server was started, and that it lives."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from penstock.server.api.access import Role
from penstock.server.api.context import Config, context_of
from penstock.server.api.guard import DASHBOARD, cookie_in, headers_of
from penstock.server.api.login_page import login_page
from penstock.server.api.models import CurrentUser, Health, ServerConfig
from penstock.server.api.routes import Asker, needs, new_router

__all__ = ["login_router", "router"]

router = new_router("server")
login_router = new_router("server", prefix="")


_HTML: Final[dict[str, Any]] = {"text/html": {}}
_PAGE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A page that asks for a token.", "content": _HTML}
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    403: {"description": "Nobody is known by the token.", "content": _HTML}
}


@login_router.get(
    "/login",
    status_code=303,
    summary="Exchange a token for a cookie",
    response_class=RedirectResponse,
    responses=_PAGE,
    openapi_extra=needs(None),
)
async def login(
    request: Request,
    token: Annotated[
        str | None,
        Query(max_length=256, description="A token that the server knows. Without one a page asks for it."),
    ] = None,
) -> Response:
    """What the URL that `penstock serve` prints leads to: a browser gets a cookie for its session, and goes on."""
    if token is None:
        return login_page()
    response = _let_in(request, token)
    if response is None:
        raise HTTPException(
            403, "Nobody is known by this token. Open the URL that penstock serve has printed."
        )
    return response


@login_router.post(
    "/login",
    status_code=303,
    summary="Exchange a token for a cookie, from the page that asks for it",
    response_class=RedirectResponse,
    responses=_REFUSED,
    openapi_extra=needs(None),
)
async def login_by_form(
    request: Request,
    token: Annotated[str, Form(max_length=256, description="A token that the server knows.")],
) -> Response:
    """What the page that asks for a token sends: the token is in no URL."""
    return _let_in(request, token.strip()) or login_page(refused=True)


def _let_in(request: Request, token: str) -> Response | None:
    """A cookie for who has a token; None when nobody has it."""
    # In the event loop, as the guard, so that sessions have one thread.
    context = context_of(request)
    principal = context.door.tokens.find(token)
    if principal is None:
        return None
    cookie = context.door.sessions.begin(principal, context.door.clock_s())
    response = RedirectResponse(context.landing, 303)
    response.set_cookie(
        context.door.cookie,
        cookie,
        max_age=int(context.door.sessions.lasts_s),
        path="/",
        secure=context.door.tls,
        httponly=True,
        samesite="strict",
    )
    return response


@login_router.get(
    "/",
    status_code=303,
    summary="Go to the dashboard",
    response_class=RedirectResponse,
    openapi_extra=needs(Role.VIEWER),
)
@login_router.get(
    DASHBOARD,
    status_code=303,
    summary="Go to the first page of the dashboard",
    response_class=RedirectResponse,
    openapi_extra=needs(Role.VIEWER),
)
def go_to_dashboard(request: Request) -> RedirectResponse:
    """Where a browser goes that asks for the server alone."""
    return RedirectResponse(context_of(request).landing, 303)


@router.delete("/session", status_code=204, summary="End the session", openapi_extra=needs(Role.VIEWER))
async def logout(request: Request, response: Response) -> None:
    """Forget the cookie that is sent."""
    door = context_of(request).door
    cookie = cookie_in(headers_of(request.scope), door.cookie)
    if cookie is not None:
        door.sessions.end(cookie)
    response.delete_cookie(door.cookie, path="/", httponly=True, samesite="strict")


@router.get("/me", summary="Who asks", openapi_extra=needs(Role.VIEWER))
def get_me(asker: Asker) -> CurrentUser:
    """The name and role of who asks."""
    return CurrentUser(name=asker.name, role=asker.role)


@router.get("/health", summary="Whether the server answers", openapi_extra=needs(None))
def get_health() -> Health:
    """For those who watch over processes. It tells nothing else."""
    return Health()


@router.get("/config", summary="How the server was started", openapi_extra=needs(Role.VIEWER))
def get_config(config: Config) -> ServerConfig:
    """The settings of the server, without secrets."""
    return config
