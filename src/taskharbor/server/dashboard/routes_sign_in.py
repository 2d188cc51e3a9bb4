"""`/sign-in` and `/sign-out`: a token becomes a session."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from taskharbor.server.dashboard.origin import is_secure
from taskharbor.server.dashboard.pages import Pages
from taskharbor.server.dashboard.sessions import COOKIE, LASTS_SECONDS
from taskharbor.server.dashboard.view import View
from taskharbor.server.errors import ApiError
from taskharbor.server.tokens import Role

pages = Pages()

NEXT_MAX = 2_000


class NextQuery(Struct, forbid_unknown_fields=True):
    """Which page to open afterwards."""

    next: Annotated[str, Meta(max_length=NEXT_MAX)] | None = None


class SignIn(Struct, forbid_unknown_fields=True):
    """The token, and which page to open afterwards."""

    token: Annotated[str, Meta(max_length=200)] = ""
    next: Annotated[str, Meta(max_length=NEXT_MAX)] | None = None


@pages.page("/sign-in", None, query=NextQuery)
async def show_sign_in(view: View) -> Response:
    """Ask for a token."""
    view.caller = await view.dashboard.caller(view.request)
    return view.render("sign_in.html", next=view.query.next, problem=None)


@pages.action("/sign-in", None, form=SignIn)
async def sign_in(view: View) -> Response:
    """Begin a session, and open the page that was asked for."""
    auth, form = view.dashboard.api.auth, view.form
    if not auth.takes_tokens:
        raise ApiError(404, "not_found", "the application decides who may see these pages; sign in there")
    try:
        record = await auth.signed_in(view.request, form.token.strip())
    except ApiError as error:
        response = view.render("sign_in.html", status=error.status, next=form.next, problem=error.message)
        response.headers.update(error.headers)
        return response
    await view.dashboard.sessions.end(view.request.cookies.get(COOKIE))
    value = await view.dashboard.sessions.begin(record)
    response = view.go(view.mount + (form.next if _is_ours(form.next) else "/"))
    response.set_cookie(
        COOKIE,
        value,
        max_age=LASTS_SECONDS,
        path=view.mount or "/",
        secure=is_secure(view.request, auth.proxies),
        httponly=True,
        samesite="strict",
    )
    return response


@pages.action("/sign-out", Role.READ)
async def sign_out(view: View) -> Response:
    """End the session."""
    await view.dashboard.sessions.end(view.request.cookies.get(COOKIE))
    response = view.go(view.url("sign-in"), "You are signed out.")
    response.delete_cookie(COOKIE, view.mount or "/")
    return response


def _is_ours(path: str | None) -> bool:
    """Whether a path leads to a page below the mount, and not to another site."""
    if path is None or not path.startswith("/") or path.startswith("//"):
        return False
    return path.isascii() and path.isprintable() and "\\" not in path
