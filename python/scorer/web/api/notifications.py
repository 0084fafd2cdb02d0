"""Where a project is told, and what was sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from scorer.release.answers import Channel, Delivery
from scorer.release.model import Severity
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import Body, Identity, Limit, Name, ProjectPath

router = APIRouter(tags=["notifications"])


class ChannelIn(Body):
    """Where to tell."""

    url: str = Field(
        min_length=1, max_length=2000, pattern=r"^[!-~]+$", examples=["mailto://user:password@example.com"]
    )
    """An apprise URL, or `https://...` of a webhook."""
    severity: Severity = Severity.INFO
    """Nothing below it."""
    checkpoints: list[Name] = Field(default=[], max_length=100)
    """Empty: all."""
    secret: Annotated[str, Field(min_length=8, max_length=500, pattern=r"^[!-~]+$")] | None = None
    """What a webhook's deliveries are signed with (HMAC-SHA256)."""


@router.get("/projects/{project}/channels")
def list_channels(by: By, project: ProjectPath) -> list[Channel]:
    """Where a project is told; secrets blanked."""
    return list(by.service.notifications.channels(by.actor, project))


@router.post("/projects/{project}/channels", status_code=201, responses=refusals(409))
def add_channel(by: By, project: ProjectPath, body: ChannelIn) -> Channel:
    """Owners: one more."""
    return by.service.notifications.add_channel(
        by.actor,
        project,
        body.url,
        severity=body.severity,
        checkpoints=body.checkpoints,
        secret=body.secret,
    )


@router.delete("/channels/{id}", status_code=204)
def remove_channel(by: By, channel: Identity) -> Response:
    """Owners: no more."""
    by.service.notifications.remove_channel(by.actor, channel)
    return Response(status_code=204)


@router.post("/channels/{id}/test")
def test_channel(by: By, channel: Identity) -> Delivery:
    """Sends one message now and says what came of it."""
    return by.service.notifications.test_channel(by.actor, channel)


@router.get("/projects/{project}/deliveries")
def list_deliveries(by: By, project: ProjectPath, limit: Limit = 100) -> list[Delivery]:
    """What was sent, newest first."""
    return list(by.service.notifications.deliveries(by.actor, project, limit=limit))
