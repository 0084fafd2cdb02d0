"""The page on which users create and revoke tokens."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import Role
from scorer.release.requests import NewToken
from scorer.web.pages.visit import Here, Posted, Visit

router = APIRouter()


@router.get("/tokens")
def tokens(here: Here) -> Response:
    """Show the tokens that the visitor may see."""
    return _show(here)


def _show(here: Visit, *, error: PlatformError | None = None) -> Response:
    return here.page(
        "tokens.html",
        error=error,
        secret=here.passed_on().get("secret", ""),
        tokens=here.service.access.tokens(here.actor),
        projects=here.projects(),
        roles=list(Role) if here.actor.admin else [role for role in Role if role is not Role.ADMIN],
    )


@router.post("/tokens")
def create(here: Here, form: Posted) -> Response:
    """Create a token and show its secret once."""
    try:
        days = form.number("days", what="the days", default=90.0)
        if not 0 < days <= 3660:
            raise InvalidError("the days of a token must be above 0 and at most 3,660; write for example 90")
        new = form.read(NewToken, expires_at=here.now + timedelta(days=days))
        _, secret = here.service.access.create_token(here.actor, **dict(new))
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/tokens", secret=secret)


@router.post("/tokens/{token}/revoke")
def revoke(here: Here, token: str, form: Posted) -> Response:
    """Revoke a token, effective immediately."""
    try:
        here.service.access.revoke_token(here.actor, token)
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/tokens", "revoked")
