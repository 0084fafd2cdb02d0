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

_LAST_OWNER = refusals(conflict="The last owner cannot be removed.")
_LAST_ADMIN = refusals(conflict="The last admin cannot be removed.")

UserPath = Annotated[str, Path(alias="user", pattern=USER, description="Name of the user.")]
TokenPath = Annotated[
    str,
    Path(alias="token", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Id of the token, not its secret."),
]


class MadeToken(BaseModel):
    """A token with its secret."""

    token: Token
    secret: str = Field(description="The secret, of which only a hash is stored. It is not shown again.")


@router.get("/me", tags=["access"])
def whoami(by: By) -> Actor:
    """Return the user that the token belongs to, with the roles that it grants."""
    return by.actor


@router.get("/projects", tags=["projects"])
def list_projects(by: By) -> list[Project]:
    """List the projects that the user is a member of; admins see all."""
    return list(by.service.access.projects(by.actor))


@router.post(
    "/projects",
    status_code=201,
    tags=["projects"],
    responses=refusals(conflict="The project exists already."),
)
def create_project(by: By, body: NewProject) -> Project:
    """Create a project. For admins."""
    quotas = body.quotas.over(Quotas()) if body.quotas else None
    return by.service.access.create_project(
        by.actor, body.name, body.title, quotas=quotas, checkpoints=body.checkpoints
    )


@router.get("/projects/{project}", tags=["projects"])
def get_project(by: By, project: ProjectPath) -> Project:
    """Return a project with its quotas."""
    return by.service.access.project(by.actor, project)


@router.patch("/projects/{project}", tags=["projects"], responses=refusals(409))
def update_project(by: By, project: ProjectPath, body: ProjectChange) -> Project:
    """Change a project. For admins."""
    access = by.service.access
    quotas = body.quotas.over(access.project(by.actor, project).quotas) if body.quotas else None
    return access.update_project(
        by.actor, project, title=body.title, quotas=quotas, checkpoints=body.checkpoints
    )


@router.get("/projects/{project}/members", tags=["projects"])
def list_members(by: By, project: ProjectPath) -> list[ProjectMember]:
    """List the members of a project with their roles."""
    return list(by.service.access.members(by.actor, project))


@router.put("/projects/{project}/members/{user}", tags=["projects"], responses=_LAST_OWNER)
def set_member(by: By, project: ProjectPath, user: UserPath, body: NewRole) -> ProjectMember:
    """Add a member, or change a member's role. For owners."""
    by.service.access.set_member(by.actor, project, user, body.role)
    return ProjectMember(user, project, body.role)


@router.delete(
    "/projects/{project}/members/{user}", status_code=204, tags=["projects"], responses=_LAST_OWNER
)
def remove_member(by: By, project: ProjectPath, user: UserPath) -> Response:
    """Remove a member from a project. For owners."""
    by.service.access.set_member(by.actor, project, user, None)
    return Response(status_code=204)


@router.get("/users", tags=["access"])
def list_users(by: By) -> list[Person]:
    """List all users, including removed ones. For admins."""
    return list(by.service.access.users(by.actor))


@router.post("/users", status_code=201, tags=["access"], responses=refusals(409))
def add_user(by: By, body: NewUser) -> Person:
    """Add a user, or restore one that was removed. For admins."""
    return by.service.access.add_user(by.actor, body.name, admin=body.admin)


@router.patch("/users/{user}", tags=["access"], responses=_LAST_ADMIN)
def set_admin(by: By, user: UserPath, body: AdminChange) -> Person:
    """Grant or revoke a user's admin rights. For admins."""
    access = by.service.access
    access.set_admin(by.actor, user, admin=body.admin)
    return next(person for person in access.users(by.actor) if person.name == user)


@router.delete("/users/{user}", status_code=204, tags=["access"], responses=_LAST_ADMIN)
def remove_user(by: By, user: UserPath) -> Response:
    """Remove a user; the user's tokens and sessions end immediately. For admins."""
    by.service.access.remove_user(by.actor, user)
    return Response(status_code=204)


@router.get("/tokens", tags=["access"])
def list_tokens(by: By) -> list[Token]:
    """List the user's tokens; owners see those of their projects, admins all."""
    return list(by.service.access.tokens(by.actor))


@router.post(
    "/tokens",
    status_code=201,
    tags=["access"],
    responses=refusals(409, not_allowed="The token would grant more than the caller has."),
)
def create_token(by: By, body: NewToken) -> MadeToken:
    """Create a token. Only this response contains its secret."""
    token, secret = by.service.access.create_token(by.actor, **dict(body))
    return MadeToken(token=token, secret=secret)


@router.delete("/tokens/{token}", status_code=204, tags=["access"])
def revoke_token(by: By, token: TokenPath) -> Response:
    """Revoke a token; its sessions end immediately."""
    by.service.access.revoke_token(by.actor, token)
    return Response(status_code=204)
