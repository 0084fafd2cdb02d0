"""Projects: members, quotas."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import Quotas, Role
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()


@router.get("/projects")
def projects(here: Here) -> Response:
    """All that he may see."""
    return _list(here)


def _list(here: Visit, *, error: PlatformError | None = None, form: Form | None = None) -> Response:
    return here.page(
        "projects.html",
        error=error,
        projects=here.projects(),
        roles={one.name: here.role(one.name) for one in here.projects()},
        form=form.values() if form else {},
    )


@router.post("/projects")
def create(here: Here, form: Posted) -> Response:
    """One more."""
    try:
        name = form.text("name", what="the name", most=60)
        here.service.access.create_project(
            here.actor,
            name,
            form.text("title", most=200) or name,
            quotas=_quotas(form),
            checkpoints=form.text("checkpoints").replace(",", " ").split(),
        )
    except PlatformError as error:
        return _list(here, error=error, form=form)
    return here.go(f"/projects/{name}", "project")


@router.get("/projects/{name}")
def project(here: Here, name: str) -> Response:
    """One of them."""
    return _show(here, name)


def _show(here: Visit, name: str, *, error: PlatformError | None = None) -> Response:
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
    )


@router.post("/projects/{name}")
def update(here: Here, name: str, form: Posted) -> Response:
    """Its title and quotas."""
    try:
        here.service.access.update_project(
            here.actor,
            name,
            title=form.text("title", what="the title", most=200),
            quotas=_quotas(form),
            checkpoints=form.text("checkpoints").replace(",", " ").split(),
        )
    except PlatformError as error:
        return _show(here, name, error=error)
    return here.go(f"/projects/{name}", "project")


@router.post("/projects/{name}/members")
def members(here: Here, name: str, form: Posted) -> Response:
    """Gives somebody a role, or takes it away."""
    try:
        role = form.text("role", what="the role")
        if role not in [*Role, "none"]:
            raise InvalidError(f'there is no role "{role[:20]}"; choose one of {", ".join(Role)}')
        user = form.text("user", what="the user", most=100)
        here.service.access.set_member(here.actor, name, user, None if role == "none" else Role(role))
    except PlatformError as error:
        return _show(here, name, error=error)
    return here.go(f"/projects/{name}", "member")


def _quotas(form: Form) -> Quotas:
    plain = Quotas()
    found = {
        key: int(form.number(key, what=what, default=getattr(plain, key)))
        for key, what in (
            ("open_changes", "the number of open changes"),
            ("slot_minutes_per_week", "the minutes per week"),
            ("bundles", "the number of bundles"),
        )
    }
    return Quotas(**found)
