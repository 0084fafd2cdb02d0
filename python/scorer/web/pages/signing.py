"""Sign-in by token, and sign-out of a session."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from scorer.release.errors import (
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    ThrottledError,
    UnreachableError,
)
from scorer.web.identity import check_form, inside
from scorer.web.multipart import read_form_data
from scorer.web.oidc import PENDING_SECONDS
from scorer.web.pages.visit import Form, Posted
from scorer.web.rendering import query
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from scorer.release.answers import Session
    from scorer.web.app import Web
    from scorer.web.oidc import OidcSignIn

router = APIRouter()

_WHY = {
    "first": "Sign in to see this page.",
    "ended": "Your session has ended. Sign in again to return to the page.",
    "out": "You are signed out.",
}


def _form(
    request: Request, *, why: str = "", wrong: str = "", following: str = "/", status: int = 200
) -> Response:
    """Show the sign-in form. A separate cookie binds it to the browser, as there is no session yet."""
    web: Web = request.app.state.web
    tie = request.cookies.get(_tie(web)) or secrets.token_urlsafe(24)
    content = web.render(
        "login.html",
        why=_WHY.get(why, ""),
        wrong=wrong,
        following=following,
        csrf=web.identity.sign(tie),
        provider=web.settings.oidc.name if web.oidc else "",
        has_ended=why == "out",
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
    """Open a session for a token."""
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
        tie = request.cookies.get(_tie(web), "")
        check_form(request, is_known=web.identity.has_signed(tie, csrf))
    except NotAllowedError:
        words = "The form had expired. Paste the token again."
        return _form(request, wrong=words, following=following, status=403)
    try:
        cookie, session = web.service.access.open_session(token)
    except NotAuthenticatedError as error:
        web.sign_ins.failed("page", token, address, str(error))
        return _form(request, wrong=f"{error}", following=following, status=401)
    return _signed_in(web, RedirectResponse(following, 303), cookie, session)


def _signed_in(web: Web, response: Response, cookie: str, session: Session) -> Response:
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


@router.get("/login/oidc")
def begin(request: Request, next: str = "/") -> Response:  # noqa: A002 - as addresses have it
    """Go to the identity provider."""
    web: Web = request.app.state.web
    oidc = _oidc(web)
    following = inside(next)
    try:
        url, pending = oidc.begin(following if len(following) < 1000 else "/")
    except UnreachableError as error:
        return _form(request, wrong=_sentence(error), following=following, status=503)
    response = RedirectResponse(url, 303)
    # The provider redirects from another site, for which browsers do not send a strict cookie.
    response.set_cookie(
        _pending(web),
        pending,
        max_age=PENDING_SECONDS,
        httponly=True,
        samesite="lax",
        secure=web.identity.secure,
        path="/",
    )
    return response


@router.get("/login/oidc/callback")
def finish(request: Request) -> Response:
    """Open a session for the user whom the identity provider has authenticated."""
    web: Web = request.app.state.web
    oidc, address = _oidc(web), source_of(request.scope)
    try:
        # Another site can redirect to this address as well, so only a started sign-in counts as a failure.
        pending = oidc.pending(request.cookies.get(_pending(web), ""))
    except NotAuthenticatedError as error:
        return _form(request, wrong=_sentence(error), status=401)
    following = inside(pending.following)
    try:
        web.sign_ins.check("", address)
        cookie, session = web.service.access.open_oidc_session(oidc.finish(pending, request.query_params))
        # The browser continues from a page of the platform and therefore sends the strict session cookie.
        response = _signed_in(web, HTMLResponse(web.render("again.html", here=following)), cookie, session)
    except NotAuthenticatedError as error:
        web.sign_ins.failed("oidc", "", address, str(error))
        response = _form(request, wrong=_sentence(error), following=following, status=401)
    except ThrottledError as error:
        response = _form(request, wrong=_sentence(error), following=following, status=429)
        response.headers["Retry-After"] = str(error.retry_after)
    except UnreachableError as error:
        response = _form(request, wrong=_sentence(error), following=following, status=503)
    response.delete_cookie(_pending(web), path="/", secure=web.identity.secure, httponly=True)
    return response


@router.get("/login/oidc/out")
def sign_out_there(request: Request) -> Response:
    """Redirect to the identity provider to end its session, too."""
    web: Web = request.app.state.web
    try:
        return RedirectResponse(_oidc(web).end_url() or f"/login{query(why='out')}", 303)
    except UnreachableError as error:
        return _form(request, wrong=_sentence(error), status=503)


def _oidc(web: Web) -> OidcSignIn:
    if web.oidc is None:
        raise NotFoundError("no identity provider is configured; sign in with a token")
    return web.oidc


def _pending(web: Web) -> str:
    return f"{web.identity.cookie}-oidc"


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
