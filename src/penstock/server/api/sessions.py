"""Routes for the server itself: login, current user, settings and health."""

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
    403: {"description": "The token is unknown.", "content": _HTML}
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
        Query(max_length=256, description="A token of the server. Default: a page asks for it."),
    ] = None,
) -> Response:
    """Set a session cookie for the owner of a token, and redirect. `penstock serve` prints this URL."""
    if token is None:
        return login_page()
    response = _log_in(request, token)
    if response is None:
        raise HTTPException(403, "This token is unknown. Open the URL that penstock serve printed.")
    return response


@login_router.post(
    "/login",
    status_code=303,
    summary="Exchange a token for a cookie, from the login page",
    response_class=RedirectResponse,
    responses=_REFUSED,
    openapi_extra=needs(None),
)
async def login_by_form(
    request: Request,
    token: Annotated[str, Form(max_length=256, description="A token of the server.")],
) -> Response:
    """Set a session cookie for the owner of a token from the login page, which keeps the token out of URLs."""
    return _log_in(request, token.strip()) or login_page(refused=True)


def _log_in(request: Request, token: str) -> Response | None:
    """Return a response that sets a cookie for the owner of a token; None if the token is unknown."""
    # In the event loop, like the guard, so that only one thread uses the sessions.
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
    """Redirect to the first page of the dashboard."""
    return RedirectResponse(context_of(request).landing, 303)


@router.delete("/session", status_code=204, summary="End the session", openapi_extra=needs(Role.VIEWER))
async def logout(request: Request, response: Response) -> None:
    """End the session of the request's cookie, and delete the cookie."""
    door = context_of(request).door
    cookie = cookie_in(headers_of(request.scope), door.cookie)
    if cookie is not None:
        door.sessions.end(cookie)
    response.delete_cookie(door.cookie, path="/", httponly=True, samesite="strict")


@router.get("/me", summary="Get the current user", openapi_extra=needs(Role.VIEWER))
def get_me(asker: Asker) -> CurrentUser:
    """Return the name and role of the current user."""
    return CurrentUser(name=asker.name, role=asker.role)


@router.get("/health", summary="Check the health of the server", openapi_extra=needs(None))
def get_health() -> Health:
    """Return that the server is up, for health probes. Reveals nothing else."""
    return Health()


@router.get("/config", summary="Get the settings of the server", openapi_extra=needs(Role.VIEWER))
def get_config(config: Config) -> ServerConfig:
    """Return the settings with which the server was started, without secrets."""
    return config
