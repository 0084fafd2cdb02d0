"""The page of users. For admins."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import Role
from scorer.release.requests import NewUser
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()

_FIRST_DAYS = 7
"""Lifetime of the token that a new user signs in with, in days."""


@router.get("/users")
def users(here: Here) -> Response:
    """Show all users with their roles."""
    return _show(here)


@router.post("/users")
def add(here: Here, form: Posted) -> Response:
    """Add a user, with a role in a project, and show a token once."""
    access = here.service.access
    try:
        new = form.read(NewUser, admin=form.on("admin"))
        project, role = form.text("project"), Role(form.text("role") or Role.VIEWER)
        access.add_user(here.actor, new.name, admin=new.admin)
        if project:
            access.set_member(here.actor, project, new.name, role)
        _, secret = access.create_token(
            here.actor,
            user=new.name,
            label="first sign-in",
            role=Role.ADMIN if new.admin else Role.OWNER,
            expires_at=here.now + timedelta(days=_FIRST_DAYS),
        )
    except ValueError:
        return _show(here, error=InvalidError("role: choose one of the list"), form=form)
    except PlatformError as error:
        return _show(here, error=error, form=form)
    return here.go("/users", secret=secret, parameters={"user": new.name})


@router.post("/users/{user}/admin")
def set_admin(here: Here, user: str, form: Posted) -> Response:
    """Grant a user the role of an admin, or revoke it."""
    try:
        here.service.access.set_admin(here.actor, user, admin=form.text("admin") == "yes")
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/users", "user")


@router.post("/users/{user}/remove")
def remove(here: Here, user: str, form: Posted) -> Response:
    """Disable a user: tokens, sessions and memberships end immediately."""
    try:
        here.service.access.remove_user(here.actor, user)
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/users", "user-removed")


def _show(here: Visit, *, error: PlatformError | None = None, form: Form | None = None) -> Response:
    users = here.service.access.users(here.actor)
    roles: dict[str, list[tuple[str, Role]]] = {}
    for project in here.projects():
        for one in here.service.access.members(here.actor, project.name):
            roles.setdefault(one.user, []).append((project.name, one.role))
    return here.page(
        "users.html",
        error=error,
        users=users,
        memberships=roles,
        projects=here.projects(),
        roles=[role for role in Role if role is not Role.ADMIN],
        secret=here.passed_on().get("secret", ""),
        days=_FIRST_DAYS,
        form=form.values() if form else {},
    )
