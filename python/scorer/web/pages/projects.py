"""Pages of projects: members, quotas, permissions."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import PlatformError
from scorer.release.model import Quotas, Role
from scorer.release.requests import (
    NewPermission,
    NewProject,
    NewRole,
    ProjectChange,
    QuotaChange,
    WithReason,
)
from scorer.web.pages.reviews import reason_line
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()


@router.get("/projects")
def projects(here: Here) -> Response:
    """Show the projects that the visitor may see."""
    return _list(here)


def _list(here: Visit, *, error: PlatformError | None = None, form: Form | None = None) -> Response:
    text, before = here.ask("text").lower(), here.ask("before")
    # A user sees few projects, so all are read at once, and the cursor is the name instead of an id.
    found = [
        one
        for one in here.projects()
        if text in f"{one.name} {one.title} {' '.join(one.checkpoints)}".lower() and one.name > before
    ]
    items, following = here.paged(found, lambda one: one.name)
    return here.page(
        "projects.html",
        error=error,
        projects=items,
        following=following,
        roles={one.name: here.role(one.name) for one in items},
        form=form.values() if form else {},
    )


@router.post("/projects")
def create(here: Here, form: Posted) -> Response:
    """Create a project from the form."""
    try:
        new = form.read(NewProject, title=form.text("title") or form.text("name"))
        here.service.access.create_project(
            here.actor, new.name, new.title, quotas=_quotas(form), checkpoints=new.checkpoints
        )
    except PlatformError as error:
        return _list(here, error=error, form=form)
    return here.go(f"/projects/{new.name}", "project")


@router.get("/projects/{name}")
def project(here: Here, name: str) -> Response:
    """Show the page of one project."""
    return _show(here, name)


def _show(
    here: Visit, name: str, *, error: PlatformError | None = None, form: Form | None = None
) -> Response:
    return here.page(
        "project.html",
        error=error,
        project=here.service.access.project(here.actor, name),
        members=here.service.access.members(here.actor, name),
        roles=[role for role in Role if role is not Role.ADMIN],
        may_change=here.is_at_least(Role.OWNER, name),
        open_changes=[
            one
            for one in here.service.changes.list(here.actor, project=name, limit=200)
            if not one.state.is_final
        ],
        bundles=here.service.bundles.list(here.actor, project=name),
        permissions=here.service.permissions.list(here.actor, name),
        checkpoints=here.settings.checkpoints,
        reasons="\n".join(map(reason_line, here.service.reviews.reasons(here.actor, name))),
        has_reviews=any(one.review.project == name for one in here.settings.checkpoints.values()),
        form=form.values() if form else {},
    )


@router.post("/projects/{name}")
def update(here: Here, name: str, form: Posted) -> Response:
    """Change the title and quotas of a project."""
    try:
        change = form.read(ProjectChange)
        here.service.access.update_project(
            here.actor,
            name,
            title=change.title,
            quotas=_quotas(form),
            checkpoints=change.checkpoints or (),
        )
    except PlatformError as error:
        return _show(here, name, error=error)
    return here.go(f"/projects/{name}", "project")


@router.post("/projects/{name}/members")
def members(here: Here, name: str, form: Posted) -> Response:
    """Set the role of a member, or remove the member."""
    try:
        user = form.text("user", what="the user", most=100)
        role = None if form.text("role") == "none" else form.read(NewRole).role
        here.service.access.set_member(here.actor, name, user, role)
    except PlatformError as error:
        return _show(here, name, error=error)
    return here.go(f"/projects/{name}", "member")


@router.post("/projects/{name}/permissions")
def grant(here: Here, name: str, form: Posted) -> Response:
    """Grant a standing permission to a member."""
    try:
        here.service.permissions.grant(here.actor, name, form.read(NewPermission))
    except PlatformError as error:
        return _show(here, name, error=error, form=form)
    return here.go(f"/projects/{name}", "permission")


@router.post("/projects/{name}/permissions/{permission}/revoke")
def revoke(here: Here, name: str, permission: str, form: Posted) -> Response:
    """Revoke a standing permission of a member."""
    try:
        here.service.permissions.revoke(here.actor, permission, **dict(form.read(WithReason)))
    except PlatformError as error:
        return _show(here, name, error=error)
    return here.go(f"/projects/{name}", "permission-revoked")


def _quotas(form: Form) -> Quotas:
    return form.read(QuotaChange).over(Quotas())
