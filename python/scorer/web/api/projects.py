"""Projects, their members, users and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from scorer.release.access import ProjectMember, Token
from scorer.release.access import User as Person
from scorer.release.fields import USER
from scorer.release.model import Actor, Project, Quotas
from scorer.release.requests import AdminChange, NewProject, NewRole, NewToken, NewUser, ProjectChange
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import ProjectPath

router = APIRouter()

UserPath = Annotated[str, Path(alias="user", pattern=USER)]
TokenPath = Annotated[str, Path(alias="token", pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class MadeToken(BaseModel):
    """The token and, this once, its secret."""

    token: Token
    secret: str = Field(description="Shown this once: only its hash is kept.")


@router.get("/me", tags=["access"])
def whoami(by: By) -> Actor:
    """Who the token's bearer is, and what he may do where."""
    return by.actor


@router.get("/projects", tags=["projects"])
def list_projects(by: By) -> list[Project]:
    """Those that one may see."""
    return list(by.service.access.projects(by.actor))


@router.post("/projects", status_code=201, tags=["projects"], responses=refusals(409))
def create_project(by: By, body: NewProject) -> Project:
    """Create a project; for administrators only."""
    quotas = body.quotas.over(Quotas()) if body.quotas else None
    return by.service.access.create_project(
        by.actor, body.name, body.title, quotas=quotas, checkpoints=body.checkpoints
    )


@router.get("/projects/{project}", tags=["projects"])
def get_project(by: By, project: ProjectPath) -> Project:
    """Return one project by its name."""
    return by.service.access.project(by.actor, project)


@router.patch("/projects/{project}", tags=["projects"], responses=refusals(409))
def update_project(by: By, project: ProjectPath, body: ProjectChange) -> Project:
    """Change title, quotas or checkpoints of a project; for administrators only."""
    access = by.service.access
    quotas = body.quotas.over(access.project(by.actor, project).quotas) if body.quotas else None
    return access.update_project(
        by.actor, project, title=body.title, quotas=quotas, checkpoints=body.checkpoints
    )


@router.get("/projects/{project}/members", tags=["projects"])
def list_members(by: By, project: ProjectPath) -> list[ProjectMember]:
    """Who is in a project, and as what."""
    return list(by.service.access.members(by.actor, project))


@router.put("/projects/{project}/members/{user}", tags=["projects"], responses=refusals(409))
def set_member(by: By, project: ProjectPath, user: UserPath, body: NewRole) -> ProjectMember:
    """Owners: adds somebody, or changes what he may do."""
    by.service.access.set_member(by.actor, project, user, body.role)
    return ProjectMember(user, project, body.role)


@router.delete(
    "/projects/{project}/members/{user}", status_code=204, tags=["projects"], responses=refusals(409)
)
def remove_member(by: By, project: ProjectPath, user: UserPath) -> Response:
    """Remove a member from a project; for owners only."""
    by.service.access.set_member(by.actor, project, user, None)
    return Response(status_code=204)


@router.get("/users", tags=["access"])
def list_users(by: By) -> list[Person]:
    """Admins: everybody, those that were removed too."""
    return list(by.service.access.users(by.actor))


@router.post("/users", status_code=201, tags=["access"], responses=refusals(409))
def add_user(by: By, body: NewUser) -> Person:
    """Admins: somebody who may be given roles and tokens."""
    return by.service.access.add_user(by.actor, body.name, admin=body.admin)


@router.patch("/users/{user}", tags=["access"], responses=refusals(409))
def set_admin(by: By, user: UserPath, body: AdminChange) -> Person:
    """Admins: makes somebody an admin, or no longer one; the last one stays."""
    access = by.service.access
    access.set_admin(by.actor, user, admin=body.admin)
    return next(person for person in access.users(by.actor) if person.name == user)


@router.delete("/users/{user}", status_code=204, tags=["access"], responses=refusals(409))
def remove_user(by: By, user: UserPath) -> Response:
    """Admins: his tokens, sessions and memberships end at once."""
    by.service.access.remove_user(by.actor, user)
    return Response(status_code=204)


@router.get("/tokens", tags=["access"])
def list_tokens(by: By) -> list[Token]:
    """One's own; every one for admins, those of their projects for owners."""
    return list(by.service.access.tokens(by.actor))


@router.post("/tokens", status_code=201, tags=["access"], responses=refusals(409))
def create_token(by: By, body: NewToken) -> MadeToken:
    """A new token; its secret is in this answer and nowhere else."""
    token, secret = by.service.access.create_token(by.actor, **dict(body))
    return MadeToken(token=token, secret=secret)


@router.delete("/tokens/{token}", status_code=204, tags=["access"])
def revoke_token(by: By, token: TokenPath) -> Response:
    """At once, its sessions too."""
    by.service.access.revoke_token(by.actor, token)
    return Response(status_code=204)
