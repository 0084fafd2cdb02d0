"""REST operations on standing permissions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from scorer.release.model import StandingPermission
from scorer.release.requests import NewPermission, WithReason
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import ProjectPath

router = APIRouter(tags=["permissions"])

PermissionPath = Annotated[
    str,
    Path(
        alias="permission",
        pattern=r"^sp_[0-9a-f]{16}$",
        description="Id of the permission, for example sp_2f6b0c1d9e8a7b65.",
    ),
]


@router.get("/projects/{project}/permissions")
def list_permissions(by: By, project: ProjectPath) -> list[StandingPermission]:
    """List the standing permissions of a project, including expired and revoked ones, newest first."""
    return list(by.service.permissions.list(by.actor, project))


@router.post(
    "/projects/{project}/permissions",
    status_code=201,
    responses=refusals(invalid="A limit is out of range, or the user is not a modeler of the project."),
)
def grant_permission(by: By, project: ProjectPath, body: NewPermission) -> StandingPermission:
    """Permit a user to submit changes of one kind at one checkpoint, within limits. For owners."""
    return by.service.permissions.grant(by.actor, project, body)


@router.post("/permissions/{permission}/revoke", responses=refusals(conflict="It has been revoked already."))
def revoke_permission(by: By, permission: PermissionPath, body: WithReason) -> StandingPermission:
    """Revoke a standing permission. Unpublished changes under it are rejected. For owners."""
    return by.service.permissions.revoke(by.actor, permission, reason=body.reason)
