"""Signing in with a token, and out again."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from scorer.release.errors import NotAllowedError, NotAuthenticatedError, ThrottledError
from scorer.web.identity import check_form, inside
from scorer.web.pages.visit import Form, Posted, read_form_data
from scorer.web.rendering import query
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from scorer.web.app import Web

router = APIRouter()

_WHY = {
    "first": "Sign in to see this page.",
    "ended": "Your session has ended. Sign in again, and you are back where you were.",
    "out": "You are signed out.",
}


def _form(
    request: Request, *, why: str = "", wrong: str = "", following: str = "/", status: int = 200
) -> Response:
    """The sign-in form; as nobody is known yet, it is tied to the browser by a cookie of its own."""
    web: Web = request.app.state.web
    tie = request.cookies.get(_tie(web)) or secrets.token_urlsafe(24)
    content = web.render(
        "login.html", why=_WHY.get(why, ""), wrong=wrong, following=following, csrf=web.identity.sign(tie)
    )
    response = HTMLResponse(content, status)
    response.set_cookie(
        _tie(web), tie, httponly=True, samesite="strict", secure=web.identity.secure, path="/", max_age=3600
    )
    return response


def _tie(web: Web) -> str:
    return f"{web.identity.cookie}-login"


@router.get("/login")
def login(request: Request, why: str = "", next: str = "/") -> Response:  # noqa: A002 - as addresses have it
    """Show the form to sign in."""
    return _form(request, why=why, following=inside(next))


async def _fields(request: Request) -> Form:
    """Read the sign-in form: a few short fields, no file."""
    return Form(await read_form_data(request, max_files=0, max_fields=8, max_part_size=8 << 10))


@router.post("/login")
def sign_in(request: Request, form: Annotated[Form, Depends(_fields)]) -> Response:
    """Opens a session for a token."""
    web: Web = request.app.state.web
    token, csrf = form.text("token", most=1000), form.text("csrf", most=200)
    following, address = inside(form.text("next") or "/"), source_of(request.scope)
    try:
        web.sign_ins.check(token, address)
    except ThrottledError as error:
        response = _form(request, wrong=_sentence(error), following=following, status=429)
        response.headers["Retry-After"] = str(error.retry_after)
        return response
    try:
        check_form(request, csrf, web.identity.sign(request.cookies.get(_tie(web), "")))
    except NotAllowedError:
        words = "This form had been open for too long. It is a new one now; paste the token once more."
        return _form(request, wrong=words, following=following, status=403)
    try:
        cookie, session = web.service.access.open_session(token)
    except NotAuthenticatedError as error:
        web.sign_ins.failed("page", token, address, str(error))
        return _form(request, wrong=f"{error}", following=following, status=401)
    response = RedirectResponse(following, 303)
    response.set_cookie(
        web.identity.cookie,
        cookie,
        expires=session.expires_at,
        httponly=True,
        samesite="strict",
        secure=web.identity.secure,
        path="/",
    )
    return response


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


@router.post("/logout")
def sign_out(request: Request, form: Posted) -> Response:
    """End the session and forget its cookie."""
    web: Web = request.app.state.web
    web.service.access.close_session(request.cookies.get(web.identity.cookie, ""))
    response = RedirectResponse(f"/login{query(why='out')}", 303)
    response.delete_cookie(web.identity.cookie, path="/", secure=web.identity.secure, httponly=True)
    return response
